//! The costs of a model's layers ([`Costs`]), and the partition of the layers into stages of about equal cost.

use std::time::Duration;

use stageline_schedule::{Checked, balance, balance_for, balance_with_speeds};

use crate::build::cut::{Cut, CutError};

/// The costs of all layers of a model. [`cut`](Self::cut) uses them to partition the layers into balanced stages. The
/// cost of a layer consists of its parameters, its FLOPs on a sample input and, if measured, its time.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs(pub(super) Vec<LayerCost>);

/// The cost of one layer of a model: its parameters, its FLOPs, and its time if the time was measured.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LayerCost {
    /// The name of the layer in the model, such as `blocks.3`, or `blocks.3.mlp` for a half of a block.
    pub name: String,
    /// The number of elements (not bytes) in the layer's float parameters.
    pub parameters: u64,
    /// The number of elements in the layer's trainable (not frozen) float parameters.
    pub trained: u64,
    /// The number of floating-point operations (FLOPs) of the layer's forward pass on the sample input. It is the sum
    /// of what the sub-layers report ([`report_flops`](crate::nn::report_flops)), or 0 if FLOPs were not counted.
    pub flops: f64,
    /// The time of one forward pass plus one backward pass of the layer on the sample input. It is the shortest of
    /// three measurements; `None` if the time was not measured.
    pub time: Option<Duration>,
}

impl Costs {
    /// Returns the cost of each layer of the model, from the first layer to the last.
    pub fn layers(&self) -> &[LayerCost] {
        &self.0
    }

    /// Returns the total number of elements (not bytes) in the float parameters of all layers of the model.
    pub fn parameters(&self) -> u64 {
        self.0.iter().map(|layer| layer.parameters).sum()
    }

    /// Returns the total number of floating-point operations (FLOPs) of one forward pass of all layers on the sample
    /// input.
    pub fn flops(&self) -> f64 {
        self.0.iter().map(|layer| layer.flops).sum()
    }

    /// Partitions the model's layers into `stages` stages of consecutive layers, and returns the partition. The cost of
    /// the costliest stage is as low as possible.
    ///
    /// The cost of a layer is its time if it was measured. Otherwise it is the layer's fraction of the model's FLOPs
    /// plus its fraction of the parameters, each from 0 to 1. So both computation and memory are balanced. If the
    /// blocks report no FLOPs ([`blocks_report_flops`](Self::blocks_report_flops)), it is the fraction of the
    /// parameters.
    ///
    /// # Errors
    /// Returns [`CutError::Balance`] if there are more stages than layers, or no stages.
    pub fn cut(&self, stages: usize) -> Result<Cut, CutError> {
        Ok(Cut::of(balance(&self.weights(), stages)?))
    }

    /// Partitions the model's layers into stages of consecutive layers, one stage for each entry of `speeds`. The time
    /// of the slowest stage is as low as possible. The time of a stage is its cost divided by the speed of its device.
    ///
    /// `speeds` lists the speed of each stage's device, in stage order. Only their ratios count.
    /// [`device_speeds`](crate::device_speeds) measures them. If several stages share a device, divide its speed among
    /// them. A layer's cost is its measured time, or else its share of FLOPs and parameters, as in [`cut`](Self::cut).
    ///
    /// # Errors
    /// Returns [`CutError::Speeds`] if there are more stages than layers, or no stages, or if a speed is not a finite
    /// number above 0.
    pub fn cut_for(&self, speeds: &[f64]) -> Result<Cut, CutError> {
        Ok(Cut::of(balance_with_speeds(&self.weights(), speeds)?))
    }

    /// Partitions the model's layers for a plan (order of actions on each worker) with several stages per worker, such
    /// as an interleaved schedule. The partition is chosen so that a simulated step of this plan is short (see
    /// [`balance_for`]). `speeds` lists the speed of each stage's device, in stage order. A layer's cost is its
    /// measured time, or else its share of FLOPs and parameters, as in [`cut`](Self::cut).
    ///
    /// # Errors
    /// Returns [`CutError::Speeds`] if the layers cannot be partitioned, as in [`cut_for`](Self::cut_for): for example,
    /// if there are more stages than layers.
    pub fn cut_of(&self, plan: &Checked, speeds: &[f64]) -> Result<Cut, CutError> {
        Ok(Cut::of(balance_for(plan, &self.weights(), speeds)?))
    }

    /// Whether stages can be balanced by the FLOPs that the layers report. True if at least one block (a layer between
    /// the first and the last) reports FLOPs, or if no block has parameters. If false, untimed layers are balanced by
    /// parameters only, because the FLOPs of the first and last layer alone say little about the model. burn's own
    /// layers report no FLOPs.
    pub fn blocks_report_flops(&self) -> bool {
        let blocks = || self.0.iter().skip(1).take(self.0.len().saturating_sub(2));
        blocks().any(|block| block.flops > 0.0) || blocks().all(|block| block.parameters == 0)
    }

    /// Returns each layer's cost as one number, by which stages are balanced: its time in seconds if measured,
    /// otherwise its share of the model's FLOPs plus its share of the parameters. FLOPs are left out if
    /// [`blocks_report_flops`](Self::blocks_report_flops) is false.
    fn weights(&self) -> Vec<f64> {
        let share = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
        let flops = if self.blocks_report_flops() { self.flops() } else { 0.0 };
        let parameters = self.parameters() as f64;
        let weight = |layer: &LayerCost| match layer.time {
            Some(time) => time.as_secs_f64(),
            None => share(layer.parameters as f64, parameters) + share(layer.flops, flops),
        };
        self.0.iter().map(weight).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(times: &[u64]) -> Costs {
        let layer = |(index, milliseconds): (usize, &u64)| LayerCost {
            name: format!("blocks.{index}"),
            parameters: 10,
            trained: 10,
            flops: 100.0,
            time: Some(Duration::from_millis(*milliseconds)),
        };
        Costs(times.iter().enumerate().map(layer).collect())
    }

    #[test]
    fn a_faster_device_gets_more_of_the_measured_time() {
        let costs = costs(&[2, 2, 2, 2, 2, 2]);
        assert_eq!(costs.cut(2).unwrap().to_string(), "0,3");
        assert_eq!(costs.cut_for(&[1.0, 1.0]).unwrap(), costs.cut(2).unwrap());
        assert_eq!(costs.cut_for(&[1.0, 2.0]).unwrap().to_string(), "0,2");
        assert_eq!(costs.cut_for(&[5.0, 1.0]).unwrap().to_string(), "0,5");
    }

    #[test]
    fn flops_of_the_last_layer_alone_do_not_decide_the_cut() {
        let mut costs = costs(&[0; 6]);
        costs.0.iter_mut().for_each(|layer| (layer.time, layer.flops) = (None, 0.0));
        costs.0[5].flops = 100.0;
        assert!(!costs.blocks_report_flops());
        assert_eq!(costs.cut(3).unwrap().to_string(), "0,2,4");
        costs.0[1].flops = 100.0;
        assert!(costs.blocks_report_flops());
        assert_ne!(costs.cut(3).unwrap().to_string(), "0,2,4");
    }

    #[test]
    fn a_speed_that_is_not_positive_is_named_with_its_stage() {
        let error = costs(&[1, 1]).cut_for(&[1.0, 0.0]).unwrap_err().to_string();
        assert!(error.contains("stage 1 is 0"), "{error}");
    }
}
