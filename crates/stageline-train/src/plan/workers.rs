//! The devices of a pipeline's workers, and their relative speeds.

use anyhow::{Result, ensure};
use stageline::schedule::Placement;

use crate::settings::running::Running;

/// Returns the index of the device that the worker `worker` (counted over all replicas) runs on. The `workers` workers
/// share the `used` devices evenly and in order, so that consecutive workers share a device if there are fewer devices.
/// All indices are zero-based.
pub fn device_of_worker(worker: usize, used: usize, workers: usize) -> usize {
    worker * used / workers
}

/// Returns, for each stage, its worker's relative speed, from `--speeds`; all are 1 if the flag is unset.
///
/// # Errors
/// Returns an error if `--device` names more devices than there are workers.
pub fn stage_speeds(running: &Running, placement: &Placement) -> Result<Vec<f64>> {
    let Some(speeds) = &running.speeds else { return Ok(vec![1.0; placement.stages()]) };
    let of_worker = worker_speeds(speeds, running.replicas, placement.workers())?;
    Ok((0..placement.stages()).map(|stage| of_worker[placement.worker(stage)]).collect())
}

/// Returns the relative speed of each of a replica's workers from `speeds`, the relative speed of each entry of
/// `--device`. Workers on the same entry share its speed. With several replicas, a worker gets the speed of the slowest
/// worker with its index.
///
/// # Errors
/// Returns an error if `--device` names more devices than there are workers.
fn worker_speeds(speeds: &[f64], replicas: usize, workers: usize) -> Result<Vec<f64>> {
    let (used, all) = (speeds.len(), replicas * workers);
    check_devices(used, all)?;
    let device = |worker: usize| device_of_worker(worker, used, all);
    let of_one = |worker: usize| {
        let sharing = (0..all).filter(|other| device(*other) == device(worker)).count();
        speeds[device(worker)] / sharing as f64
    };
    let slowest = |worker: usize| {
        let copies = (0..replicas).map(|replica| of_one(replica * workers + worker));
        copies.fold(f64::INFINITY, f64::min)
    };
    Ok((0..workers).map(slowest).collect())
}

/// Returns an error if `--device` lists more devices (`used`) than there are workers in all replicas (`workers`).
pub fn check_devices(used: usize, workers: usize) -> Result<()> {
    ensure!(
        used <= workers,
        "--device: {used} devices for {workers} workers; name at most {workers}, or raise --stages or --replicas"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_on_one_device_share_its_speed() {
        assert_eq!(worker_speeds(&[3.0], 1, 3).unwrap(), [1.0, 1.0, 1.0]);
        assert_eq!(worker_speeds(&[1.0, 4.0], 1, 3).unwrap(), [0.5, 0.5, 4.0]);
        assert_eq!(worker_speeds(&[1.0, 2.0, 3.0], 1, 3).unwrap(), [1.0, 2.0, 3.0]);
    }

    #[test]
    fn a_stage_is_as_slow_as_its_slowest_replica() {
        assert_eq!(worker_speeds(&[1.0, 4.0, 2.0, 3.0], 2, 2).unwrap(), [1.0, 3.0]);
    }

    #[test]
    fn more_devices_than_workers_are_rejected() {
        let error = worker_speeds(&[1.0; 3], 1, 2).unwrap_err().to_string();
        assert!(error.contains("3 devices for 2 workers"), "{error}");
    }
}
