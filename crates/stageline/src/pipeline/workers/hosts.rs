//! Finds out whether an error of a pipeline on several hosts comes from a lost host, or from a broken network link
//! between hosts.

use burn::tensor::Device;

use super::Workers;
use crate::device::remote::{hosts_of, lost_hosts, lost_links};
use crate::failure::step_error::StepError;
use crate::model::replica::{Replica, ReplicaStage};

impl<In, Out, Target> Workers<In, Out, Target> {
    fn all_devices(&self) -> impl Iterator<Item = (ReplicaStage, &Device)> {
        Replica::all(self.replicas()).zip(&self.devices).flat_map(|(replica, stages)| {
            stages.iter().enumerate().map(move |(stage, device)| (ReplicaStage { replica, stage }, device))
        })
    }

    /// Returns an error that names the lost hosts (hosts that no longer answer), or `error` itself if there are none. A
    /// stage fails if it reads a tensor from a lost host, so `error` may name a stage on a host that works.
    pub(super) fn name_lost_hosts(&self, error: StepError) -> StepError {
        match error {
            StepError::Stage(_) | StepError::Stalled(_) => match lost_hosts(self.all_devices()) {
                none if none.is_empty() => error,
                hosts => StepError::HostsLost { hosts, during: self.watch.during, cause: Box::new(error) },
            },
            other => other,
        }
    }

    /// Returns an error that names the broken network links between hosts, or `error` itself if there are none. If
    /// `error` is the failure of a stage, the names of the pipeline's other hosts are added, because their logs may say
    /// more.
    pub(super) fn name_lost_networks(&self, error: StepError) -> StepError {
        if !matches!(error, StepError::Stage(_) | StepError::Stalled(_)) {
            return error;
        }
        let links = lost_links(self.devices.iter().map(|stages| stages.iter().collect()));
        match error {
            error if !links.is_empty() => {
                StepError::HostsApart { links, during: self.watch.during, cause: Box::new(error) }
            }
            StepError::Stage(mut failure) => {
                failure.elsewhere = hosts_of(self.all_devices().map(|(_, device)| device));
                StepError::Stage(failure)
            }
            other => other,
        }
    }
}
