//! Formats the output of `stageline advise` about network links between workers, and about partitions over hosts.

use anyhow::Result;
use stageline_report::{Crossing, HostCut, Link, Measured, Prediction, Target};

use super::input::Asked;
use crate::plan_flags;

/// Threshold above which `stageline advise` calls network links too slow: the increase of the bubble caused by their
/// transfers, as a fraction (0 to 1) of the total stage time (workers x step time).
const TOO_SLOW: f64 = 0.02;

impl Asked<'_> {
    /// Returns a text table of the network links between stages; empty if the plan uses no link.
    ///
    /// A link's row shows the predicted bubble if only this link's transfers take time. The last two rows show the
    /// bubbles with all links and with no links. A line follows for each of the schedules eager-1f1b, zb-h1 and zb-h2
    /// that has a smaller bubble over these links than the plan.
    pub(super) fn links(&self, measured: &Measured, target: &Target) -> Result<String> {
        let crossings = measured.crossings(target)?;
        if crossings.is_empty() {
            return Ok(String::new());
        }
        let (without, with) = (measured.clone().without_links().predict(target)?, measured.predict(target)?);
        let mut text = format!(
            "link          GB/s     latency  MB each way      round trip    stage before  bubble, at M = {} under {}\n",
            target.micro_batches,
            self.name_with_chunks()
        );
        for (crossing, alone) in crossings {
            let Crossing { stage, link: Link { latency, bandwidth }, bytes } = crossing;
            text += &format!(
                "{:<9} {:>8.4} {:>8.3} ms {:>12.3} {:>12.3} ms {:>12.3} ms  {}\n",
                format!("{stage} to {}", stage + 1),
                bandwidth / 1e9,
                1e3 * latency,
                bytes / 1e6,
                1e3 * crossing.takes(),
                1e3 * measured.computes(with.cut[stage].clone()),
                verdict(without.bubble, alone),
            );
        }
        let mut line = |links, bubble: String| text += &format!("{links:<77}{bubble}\n");
        line("all links", verdict(without.bubble, with.bubble));
        line("no links", format!("{:.1}%", 100.0 * without.bubble));
        Ok(text + &self.tolerant_schedules(measured, target, with.bubble)?)
    }

    /// Suggests schedules that tolerate slow links better: one line of text for each of eager-1f1b, zb-h1 and zb-h2
    /// whose predicted bubble is below `bubble` (a fraction, 0 to 1). The predictions use `target`'s numbers of workers
    /// and micro-batches, its partition of the layers, and the network links in `measured`.
    fn tolerant_schedules(&self, measured: &Measured, target: &Target, bubble: f64) -> Result<String> {
        let mut text = String::new();
        for name in ["eager-1f1b", "zb-h1", "zb-h2"].into_iter().filter(|name| *name != self.name) {
            let schedule = plan_flags::schedule(name, None)?;
            // Not every schedule has a plan of every shape.
            let Ok(found) = measured.predict(&Target { schedule: &schedule, cut: target.cut.clone(), ..*target })
            else {
                continue;
            };
            if found.bubble < bubble {
                let (bubble, live) = (100.0 * found.bubble, most_live(&found));
                text +=
                    &format!("over these links {name} has a bubble of {bubble:.1}%, with {live} live micro-batches\n");
            }
        }
        Ok(text)
    }

    /// Returns a text table with a row for each partition of the layers over hosts in `cuts`. A row names the last
    /// layer before each boundary between hosts, and the MB that one micro-batch sends there in each direction
    /// (activations forward, as many bytes of gradients back). The time of the slowest worker, the step time and the
    /// bubble follow. If there is only one partition, or all boundaries carry the same bytes, a last line says so.
    pub(super) fn host_cuts(&self, measured: &Measured, cuts: &[HostCut]) -> String {
        let end = |stage: &usize| self.log.run.layers[measured.cut()[*stage].end - 1].name.as_str();
        let places: Vec<_> = cuts.iter().map(|cut| cut.behind.iter().map(end).collect::<Vec<_>>().join(", ")).collect();
        let megabytes = |cut: &HostCut| cut.bytes.iter().map(|bytes| format!("{:.3}", bytes / 1e6)).collect::<Vec<_>>();
        let megabytes: Vec<_> = cuts.iter().map(|cut| megabytes(cut).join(", ")).collect();
        let longest =
            |texts: &[String], heading: &str| texts.iter().map(String::len).max().unwrap_or(0).max(heading.len());
        let (width, most) = (longest(&places, "hosts split after"), longest(&megabytes, "MB each way"));
        let table = |place: &str, bytes: &str, slowest: &str, step: &str, bubble: &str| {
            format!("{place:width$}  {bytes:>most$}  {slowest:>14}  {step:>12}  {bubble:>6}\n")
        };
        let mut text = table("hosts split after", "MB each way", "slowest worker", "step", "bubble");
        for ((place, megabytes), HostCut { slowest, prediction, .. }) in places.iter().zip(&megabytes).zip(cuts) {
            let milliseconds = |seconds: f64| format!("{:.3} ms", 1e3 * seconds);
            let bubble = format!("{:.1}%", 100.0 * prediction.bubble);
            text += &table(place, megabytes, &milliseconds(*slowest), &milliseconds(prediction.step), &bubble);
        }
        let same = cuts.iter().flat_map(|cut| &cut.bytes).all(|bytes| *bytes == cuts[0].bytes[0]);
        text + match (cuts.len(), same) {
            (1, _) if self.log.run.cut_by_hand => {
                "the model is cut by hand, so these hosts can split at no other boundary\n"
            }
            (1, _) => "the run has no other boundary at which these hosts could split; log a run of more stages\n",
            (_, true) => "all of these boundaries carry the same bytes, so only the balance decides\n",
            (_, false) => "",
        }
    }
}

/// Formats the predicted bubble, and says whether the network links are fast enough. `with` is the bubble with
/// transfers over the links, and `without` the bubble with free transfers. Both are fractions (0 to 1) of the total
/// stage time. Links are too slow if `with - without` is above 0.02.
fn verdict(without: f64, with: f64) -> String {
    let (percent, more) = (100.0 * with, with - without);
    if more > TOO_SLOW {
        format!("{percent:.1}%, too slow for this split: {:.1}% of the stage time", 100.0 * more)
    } else {
        format!("{percent:.1}%, fast enough")
    }
}

/// Returns the largest predicted number of live micro-batches on any worker. A micro-batch is live while its
/// activations are retained for its backward pass.
pub(super) fn most_live(prediction: &Prediction) -> usize {
    prediction.peak_live.iter().max().copied().unwrap_or(0)
}
