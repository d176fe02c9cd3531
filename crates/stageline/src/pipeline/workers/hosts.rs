//! Hosts of stages that are lost.

use burn::tensor::Device;

use crate::device::remote::{LostHost, hosts_of, lost_hosts, lost_ways};
use crate::failure::step_error::StepError;
use crate::model::payload::Payload;
use crate::model::replica::Replica;
use crate::pipeline::Pipeline;

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    /// Every stage's device.
    fn devices(&self) -> impl Iterator<Item = (Replica, usize, &Device)> {
        Replica::all(self.replicas()).zip(&self.stages).flat_map(|(replica, stages)| {
            stages.iter().enumerate().map(move |(stage, (device, _))| (replica, stage, device))
        })
    }

    /// An error that says which hosts are lost, if it is because of that: a server that goes away shows wherever its tensors, or
    /// those that came through it, are asked for.
    pub(crate) fn of_hosts(&self, error: StepError) -> StepError {
        match error {
            StepError::Stage(_) | StepError::Stalled(_) => match lost_hosts(self.devices()) {
                none if none.is_empty() => error,
                hosts => StepError::HostsLost { hosts, during: self.during, cause: Box::new(error) },
            },
            other => other,
        }
    }

    /// An error that says between which hosts the network is lost, if it is because of that, or where else to look.
    pub(crate) fn of_ways(&self, error: StepError) -> StepError {
        if !matches!(error, StepError::Stage(_) | StepError::Stalled(_)) {
            return error;
        }
        let chains = self.stages.iter().map(|stages| stages.iter().map(|(device, _)| device).collect());
        let ways = lost_ways(chains);
        match error {
            error if !ways.is_empty() => StepError::HostsApart { ways, during: self.during, cause: Box::new(error) },
            StepError::Stage(mut failure) => {
                failure.elsewhere = hosts_of(self.devices().map(|(_, _, device)| device));
                StepError::Stage(failure)
            }
            other => other,
        }
    }

    /// The stages of which nothing can be had any more.
    pub(crate) fn give_up(&mut self, hosts: &[LostHost]) {
        let stages = hosts.iter().flat_map(|host| &host.stages);
        self.out_of_reach = stages.filter(|(replica, _)| replica.is_first()).map(|(_, stage)| *stage).collect();
    }
}
