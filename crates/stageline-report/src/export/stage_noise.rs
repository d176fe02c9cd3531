//! Computes the gradient noise scale of each pipeline stage as scalars for TensorBoard: [`StageNoise`].

use std::collections::VecDeque;

use crate::log::WINDOW;
use crate::log::record::{Noise, SignalAndNoise};

/// The gradient noise estimates of the last 9 measured training steps, for each pipeline stage. While a training runs,
/// [`add`](Self::add) computes the noise scales of the stages from them, as scalars for TensorBoard.
#[derive(Clone, Debug, Default)]
pub struct StageNoise {
    latest: VecDeque<Vec<SignalAndNoise>>,
}

impl StageNoise {
    /// Makes an empty store of gradient noise estimates, for a training that has not measured any yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the gradient noise estimates of a training step, and returns two TensorBoard tags with their values for
    /// each pipeline stage: the noise scale of this step alone (`noise scale of stage 0/of the step`), and that of the
    /// last 9 measured steps together (`noise scale of stage 0/smoothed`). The unit of both is the loss weight of a
    /// batch (in most models, tokens). A noise scale is left out if the estimated squared norm of the gradient is not
    /// above 0.
    pub fn add(&mut self, noise: &Noise) -> Vec<(String, f64)> {
        self.latest.push_back(noise.stages.clone());
        if self.latest.len() > WINDOW {
            self.latest.pop_front();
        }
        let alone = noise.stage_scales();
        let tagged = |(stage, alone): (usize, Option<f64>)| {
            let estimates: Vec<_> = self.latest.iter().filter_map(|stages| stages.get(stage).copied()).collect();
            let scales = [("of the step", alone), ("smoothed", SignalAndNoise::scale_of(&estimates))];
            scales.map(|(name, scale)| Some((format!("noise scale of stage {stage}/{name}"), scale?)))
        };
        alone.into_iter().enumerate().flat_map(tagged).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::TensorBoard;
    use super::*;

    /// Splits a protocol buffer message into its fields: the number and the bytes of each field.
    fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
        let varint = |bytes: &[u8]| {
            let length = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
            let value = bytes[..length].iter().rev().fold(0_u64, |value, byte| value << 7 | u64::from(byte & 0x7f));
            (value, length)
        };
        let mut found = Vec::new();
        while !message.is_empty() {
            let (key, length) = varint(message);
            message = &message[length..];
            let size = match key & 7 {
                0 => varint(message).1,
                1 => 8,
                2 => {
                    let (size, length) = varint(message);
                    message = &message[length..];
                    size as usize
                }
                _ => 4,
            };
            found.push((key >> 3, &message[..size]));
            message = &message[size..];
        }
        found
    }

    /// Reads the scalars of a TensorBoard event file: the tag and the value of each, in order.
    fn scalars(mut file: &[u8]) -> Vec<(String, f32)> {
        let mut found = Vec::new();
        while !file.is_empty() {
            let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
            let (_, summary) =
                *fields(&file[12..12 + length]).iter().find(|(field, _)| *field == 5).unwrap_or(&(5, &[]));
            for (_, value) in fields(summary) {
                let value = fields(value);
                let tag = String::from_utf8(value[0].1.to_vec()).unwrap();
                found.push((tag, f32::from_le_bytes(value[1].1.try_into().unwrap())));
            }
            file = &file[12 + length + 4..];
        }
        found
    }

    #[test]
    fn the_event_file_has_the_noise_scale_of_each_stage() {
        let estimate = |squared_norm, variance| SignalAndNoise { squared_norm, variance };
        let noise = |stages: [SignalAndNoise; 2]| Noise {
            scale: None,
            smoothed_scale: None,
            total: estimate(1.0, 1.0),
            stages: stages.to_vec(),
        };
        let (mut file, mut stages) = (Vec::new(), StageNoise::new());
        let mut board = TensorBoard::new(&mut file, 0.0).unwrap();
        // In the second step the squared norm of stage 1 is not above 0.
        let steps = [[estimate(2.0, 8.0), estimate(1.0, 10.0)], [estimate(1.0, 16.0), estimate(-0.5, 15.0)]];
        for (step, estimates) in steps.into_iter().enumerate() {
            let figures = stages.add(&noise(estimates));
            let figures: Vec<_> = figures.iter().map(|(tag, value)| (tag.as_str(), *value)).collect();
            board.scalars(0.0, step, &figures).unwrap();
        }
        let tag = |stage: usize, name: &str| format!("noise scale of stage {stage}/{name}");
        let expected = [
            (tag(0, "of the step"), 4.0),
            (tag(0, "smoothed"), 4.0),
            (tag(1, "of the step"), 10.0),
            (tag(1, "smoothed"), 10.0),
            (tag(0, "of the step"), 16.0),
            (tag(0, "smoothed"), 24.0 / 3.0),
            (tag(1, "smoothed"), 25.0 / 0.5),
        ];
        assert_eq!(scalars(&file), expected);
    }

    #[test]
    fn the_smoothed_scale_forgets_steps_beyond_the_window() {
        let mut stages = StageNoise::new();
        let step = |variance| Noise {
            scale: None,
            smoothed_scale: None,
            total: SignalAndNoise { squared_norm: 1.0, variance },
            stages: vec![SignalAndNoise { squared_norm: 1.0, variance }],
        };
        stages.add(&step(1e6));
        let last = (0..WINDOW).map(|_| stages.add(&step(5.0))).last().unwrap();
        assert_eq!(last[1], ("noise scale of stage 0/smoothed".to_owned(), 5.0));
    }
}
