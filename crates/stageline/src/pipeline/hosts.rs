//! Hosts of stages that are lost.

use super::Pipeline;
use crate::error::StepError;
use crate::payload::Payload;
use crate::remote::{LostHost, lost_hosts};
use crate::replica::Replica;

impl<In: Payload, Target: Payload> Pipeline<In, Target> {
    /// Those of its stages that do not answer any more.
    fn lost_hosts(&self) -> Vec<LostHost> {
        let stages = Replica::all(self.replicas()).zip(&self.stages).flat_map(|(replica, stages)| {
            stages.iter().enumerate().map(move |(stage, (device, _))| (replica, stage, device))
        });
        lost_hosts(stages)
    }

    /// An error that says which hosts are lost, if it is because of that: a server that goes away shows wherever its tensors, or
    /// those that came through it, are asked for.
    pub(super) fn of_hosts(&self, error: StepError) -> StepError {
        match error {
            StepError::Stage(_) | StepError::Stalled(_) => match self.lost_hosts() {
                none if none.is_empty() => error,
                hosts => StepError::HostsLost { hosts, during: self.during, cause: Box::new(error) },
            },
            other => other,
        }
    }

    /// The stages of which nothing can be had any more.
    pub(super) fn give_up(&mut self, hosts: &[LostHost]) {
        let stages = hosts.iter().flat_map(|host| &host.stages);
        self.out_of_reach = stages.filter(|(replica, _)| replica.is_first()).map(|(_, stage)| *stage).collect();
    }
}
