//! `stageline devices`: lists the devices of this host.

use clap::Args;
use stageline::GpuApi;

use crate::output::print;

/// Lists the devices of this host by the names that `--device` takes
///
/// Each line has a device's name and the model of the processor or GPU. A GPU appears once for every interface through
/// which this build can use it.
#[derive(Args)]
pub(crate) struct Flags {}

pub(crate) fn run(Flags {}: Flags) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let line = |name: &str, text: &str| format!("{name:<12}{text}\n");
    let mut lines = line("cpu", &format!("{cores} cores"));
    for api in GpuApi::ALL {
        match api.models() {
            None => lines += &line(&format!("{api}:"), &format!("not in this build; install it with --features {api}")),
            Some(models) if models.is_empty() => {
                lines += &line(&format!("{api}:"), &format!("none found; {}", api.needs()));
            }
            Some(models) => {
                for (index, model) in models.iter().enumerate() {
                    let model = model.as_deref().unwrap_or("does not start; its driver may be broken");
                    lines += &line(&format!("{api}:{index}"), model);
                }
            }
        }
    }
    print(&lines)
}
