//! Tests of what users read about devices: the list of `stageline devices`, errors of missing and broken drivers, and
//! the lines at the start of a training run.

use std::path::Path;
use std::process::Command;

use stageline::{DeviceName, GpuApi};
use stageline_workspace::programs::{program, stdout_of};
use stageline_workspace::runs::Place;

use crate::gpu_name;

/// Returns the programming interface of the GPU on which the tests run, such as `wgpu`.
fn api() -> GpuApi {
    GpuApi::named(gpu_name().split(':').next().unwrap()).unwrap()
}

/// Whether the tests use their GPU through the Vulkan loader, which the tests of broken loaders replace.
fn is_vulkan() -> bool {
    cfg!(target_os = "linux") && [GpuApi::Wgpu, GpuApi::Vulkan].contains(&api())
}

/// Returns the output of the command `stageline devices`, in an environment that `change` changes.
fn listed(change: impl FnOnce(&mut Command)) -> String {
    let mut command = program("stageline");
    command.arg("devices");
    change(&mut command);
    stdout_of(&mut command)
}

/// Returns the line about the programming interface of the tests' GPU (such as `wgpu`) in the output of `stageline
/// devices`.
fn line(said: &str) -> &str {
    said.lines().find(|line| line.starts_with(api().name())).unwrap_or_else(|| panic!("{said}"))
}

/// Hides the Vulkan drivers of the host from a program. The OpenGL drivers stay visible, so that a test can check that
/// the program does not use them instead.
fn hide_drivers(command: &mut Command) {
    for variable in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"] {
        command.env(variable, "/nonexistent");
    }
}

/// Puts a damaged Vulkan loader in `folder`, and makes a program find this loader first. The OpenGL drivers of the host
/// stay visible, so that a test can check that the program does not use them instead.
fn break_loader(command: &mut Command, folder: &Path) {
    std::fs::write(folder.join("libvulkan.so.1"), "").unwrap();
    command.env("LD_LIBRARY_PATH", folder);
}

#[test]
fn devices_are_listed_with_their_model_and_memory() {
    let gpus = api().gpus().unwrap();
    let model = gpus[0].model.as_ref().unwrap();
    let said = listed(|_| {});
    let found = line(&said);
    assert!(found.starts_with(&format!("{api}:0", api = api())) && found.contains(model.as_str()), "{said}");
    assert!(found.contains(" reserved, ") && found.ends_with(" in use"), "{said}");
    // Mesa's devices in software name the compiler by which they compute.
    assert_eq!(found.contains(", software, "), model.contains("llvmpipe"), "{said}");
    assert!(said.starts_with("cpu "), "{said}");
}

#[test]
fn a_host_without_drivers_is_told_what_to_install() {
    if is_vulkan() {
        let said = listed(hide_drivers);
        let found = line(&said);
        assert!(found.contains("none found; check `vulkaninfo --summary`"), "{said}");
        assert!(found.contains("`mesa-vulkan-drivers`") && found.contains("VK_DRIVER_FILES"), "{said}");
    }
}

/// Tests the error for a damaged Vulkan loader: `stageline devices` and a training say that the loader is broken, and
/// not that the host has no GPU.
#[test]
fn a_broken_loader_is_reported_with_its_package() {
    if !is_vulkan() {
        return;
    }
    let place = Place::new();
    let folder = tempfile::tempdir().unwrap();
    let said = listed(|command| break_loader(command, folder.path()));
    let broken = "the library libvulkan.so.1 is broken (";
    let found = line(&said);
    assert!(found.contains(&format!("cannot be searched; {broken}")) && found.contains("`libvulkan1`"), "{said}");

    let mut training = place.command(&format!("--device {} --steps 1", gpu_name()));
    break_loader(&mut training, folder.path());
    let output = training.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains(&format!("`{}` was not found: {broken}", gpu_name())), "{error}");
}

#[test]
fn missing_devices_are_named_with_those_that_are_there() {
    let api = api();
    let name: DeviceName = format!("{api}:99").parse().unwrap();
    let message = name.open().unwrap_err().to_string();
    // A host with a device needs no advice on what to install.
    assert!(message.starts_with(&format!("`{api}:99` was not found: {api} finds ")), "{message}");
    assert!(message.contains(&format!("`{api}:0`")) && !message.contains("install"), "{message}");
    assert_eq!(DeviceName::parse_list(&format!("{api}:all")).unwrap()[0].to_string(), format!("{api}:0"));
}

/// Tests the lines at the start of a training run with one stage on the CPU and one on a GPU. They are about the
/// compilation of kernels, the memory of the GPU and the measured speeds. They also say that tensors are copied between
/// host memory and GPU, and how much memory the first step reserves.
#[test]
fn the_start_of_a_run_tells_what_it_does_with_the_device() {
    let device = gpu_name();
    let output = Place::new().run(&format!("--device cpu,{device} --speeds measured --steps 1"));
    let [said, logged] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{logged}");
    let compiling = if DeviceName::tunes_kernels() {
        format!("compiling and tuning kernels for {device} ...\n")
    } else {
        format!("compiling kernels for {device}, without fusing or tuning them")
    };
    for expected in [
        compiling,
        "\nthe kernels are ready after ".to_owned(),
        format!("\n{device}: "),
        "measured speeds in f32: cpu ".to_owned(),
    ] {
        assert!(said.contains(&expected), "{expected} is missing in {said}");
    }
    let total = api().gpus().unwrap()[0].memory.and_then(|memory| memory.total);
    let unknown = format!("\n{device} reports no size of its memory, so the estimate is not compared with it");
    assert_eq!(said.contains(&unknown), total.is_none(), "{said}");
    let path = format!("tensors are copied between the host's memory and a GPU: cpu and {device}");
    assert!(logged.contains(&path), "{logged}");
    let (_, reserved) = logged.split_once(&format!("{device}: ")).unwrap_or_else(|| panic!("{logged}"));
    let compared = ["MB reserved after the first step, ", " times the estimate of ", " MB in use"];
    assert!(compared.iter().all(|words| reserved.contains(words)), "{logged}");
}

/// Tests the first lines of a run with two replicas of one stage, one replica on the CPU and one on a GPU. The lines
/// say that gradient sums are copied between host memory and GPU. They do not say that activations are copied.
#[test]
fn the_start_of_a_run_with_replicas_names_the_path_of_gradient_sums() {
    let device = gpu_name();
    let place = Place::new();
    let output = place.run(&format!("--device cpu,{device} --stages 1 --replicas 2 --steps 1"));
    let said = place.shown(&output);
    assert!(output.status.success(), "{said}");
    let path = format!("gradient sums of replicas are copied between the host's memory and a GPU: cpu and {device}");
    assert!(said.contains(&path) && !said.contains("tensors are copied"), "{said}");
}
