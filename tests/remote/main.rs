//! Tests of stages on other hosts, which server processes on this host imitate: training gives the same bits as a local
//! run, devices that cannot be used are rejected with a reason, and lost hosts are named.

#![cfg(unix)]

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::optim::SgdConfig;
use burn::remote::RemoteHost;
use burn::server::{RemoteServer, WebSocketTransport};
use burn::tensor::{Device, TensorData};
use serde_json::Value;
use stageline::{BuildError, DeviceName, Pipeline, StageConfig, Watchdog};
use stageline_workspace::mlp::Mlp;
use stageline_workspace::{programs, runs};

use crate::programs::program;
use crate::runs::{Place, hash, wait_for_lines};

/// A running process of the command `stageline serve`, which lends devices to trainings. Dropping this value kills the
/// process.
struct Server {
    process: Child,
    /// The name of the server in the flag `--device`. Its devices are written there as this name, `/` and the index of
    /// the device.
    host: String,
}

impl Server {
    /// Starts a server process with the given flags, and waits until it has printed the names of its devices.
    fn start(flags: &str, place: &Place) -> Self {
        let mut command = command(flags, place);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let named = lines.map(|line| line.unwrap()).find_map(|line| Some(line.strip_prefix("--device ")?.to_owned()));
        let host = named.unwrap().split(',').next().unwrap().strip_suffix("/0").unwrap().to_owned();
        Self { process, host }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a command that runs `stageline serve` with the given flags. An `@` at the start of a word stands for the
/// test's folder.
fn command(flags: &str, place: &Place) -> Command {
    let mut command = program("stageline");
    command.arg("serve").args(place.words(flags));
    command
}

/// Starts three servers, each with a secret key of its own and with the given flags for its network connection.
fn servers(connections: [&str; 3], place: &Place) -> Vec<Server> {
    let keys = 0..connections.len();
    connections
        .iter()
        .zip(keys)
        .map(|(connection, key)| Server::start(&format!("--port 0 --key @key{key} {connection}"), place))
        .collect()
}

/// Returns the device flags of a training with four stages: the first on the local CPU, and one on each of three
/// servers.
fn devices(servers: &[Server]) -> String {
    let remote: Vec<_> = servers.iter().map(|server| format!("{}/0", server.host)).collect();
    format!("--stages 4 --device cpu,{}", remote.join(","))
}

const TOKEN: &str = "--token-file @token";

/// The four kinds of connection to a server that are tested: the flags of the server, and the flags of a training that
/// uses it.
const CONNECTIONS: [(&str, &str); 4] = [
    ("--transport websocket --allow-anyone", ""),
    ("--transport websocket --token-file @token", TOKEN),
    ("--transport iroh --allow-anyone", ""),
    ("--transport iroh --relays disabled --token-file @token", TOKEN),
];

/// Creates a temporary folder with a text to train on and two token files, which contain the secrets of the servers.
fn place() -> Place {
    let place = Place::new();
    fs::write(place.path("token"), "a secret\nand what is no part of it\n").unwrap();
    fs::write(place.path("other"), "another secret\n").unwrap();
    place
}

#[test]
fn stages_on_three_other_hosts_train_to_the_bits_of_a_local_run() {
    let place = place();
    let expected = place.said("--stages 4 --steps 3");
    let trains_to_it = |connections: [&str; 3], token| {
        let servers = servers(connections, &place);
        let said = place.said(&format!("--steps 3 {token} {}", devices(&servers)));
        assert_eq!(hash(&said), hash(&expected), "{connections:?}");
    };
    for (connection, token) in CONNECTIONS {
        trains_to_it([connection; 3], token);
    }
    let [(web, _), (iroh, token)] = [CONNECTIONS[1], CONNECTIONS[3]];
    trains_to_it([web, iroh, web], token);
}

#[test]
fn split_backwards_recomputation_and_bf16_on_other_hosts_match_a_local_run() {
    let place = place();
    let (connection, token) = CONNECTIONS[3];
    let servers = servers([connection; 3], &place);
    for flags in [
        "--schedule zb-h1 --recompute full --steps 3",
        "--precision bf16 --steps 3",
        "--flush ahead --steps 4",
        "--synchronise-every 1 --steps 2 --optimizer adafactor",
        // The backward pass computes the attention weights of so long samples again.
        "--context 2200 --micro-batch-size 1 --micro-batches 1 --steps 1",
    ] {
        let local = place.said(&format!("--stages 4 {flags}"));
        let remote = place.said(&format!("{token} {} {flags}", devices(&servers)));
        assert_eq!(hash(&remote), hash(&local), "{flags}");
    }
}

/// Tests a training with several stages and replicas on each host. Their transfers between the same two servers share a
/// connection and must not block each other.
#[test]
fn several_stages_and_replicas_on_a_host_match_a_local_run() {
    let place = place();
    for flags in [
        "--schedule interleaved --stages 4 --layers 8 --steps 2",
        "--schedule zb-v --stages 4 --layers 8 --steps 2 --replicas 2 --micro-batches 4",
    ] {
        let local = place.said(flags);
        for (connection, token) in [CONNECTIONS[1], CONNECTIONS[3]] {
            let servers = servers([connection; 3], &place);
            let remote = place.said(&format!("{token} {} {flags}", devices(&servers)));
            assert_eq!(hash(&remote), hash(&local), "{connection} {flags}");
        }
    }
}

/// Tests two trainings that use the same server at the same time: no tensor of one may get to the other.
#[test]
fn two_trainings_share_a_server_and_each_matches_its_local_run() {
    let place = place();
    let flags = [1, 2].map(|seed| format!("--stages 2 --steps 8 --seed {seed}"));
    let local = flags.each_ref().map(|flags| place.said(flags));
    for (connection, token) in [CONNECTIONS[1], CONNECTIONS[3]] {
        let server = Server::start(&format!("--port 0 --key @key {connection}"), &place);
        let run = |flags: &String| place.said(&format!("{flags} {token} --device cpu,{}/0", server.host));
        let [first, second] = &flags;
        let remote = thread::scope(|scope| {
            let first = scope.spawn(|| run(first));
            let second = run(second);
            [first.join().unwrap(), second]
        });
        assert_eq!(remote.each_ref().map(|said| hash(said)), local.each_ref().map(|said| hash(said)), "{connection}");
    }
}

/// Tests a training on a server that was used by a training that was killed. An iroh server notices the end of a killed
/// program only after half a minute, so it then still executes the requests of that program.
#[test]
fn a_training_after_a_killed_one_on_the_same_server_matches_a_local_run() {
    let place = place();
    let expected = place.said("--stages 2 --steps 8");
    for (connection, token) in [CONNECTIONS[1], CONNECTIONS[3], CONNECTIONS[3]] {
        let server = Server::start(&format!("--port 0 --key @key {connection}"), &place);
        let run = format!("--stages 2 {token} --device cpu,{}/0", server.host);
        let _ = fs::remove_file(place.path("log"));
        let mut command = place.command(&format!("--steps 400 --log @log {run}"));
        let mut training = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for_lines(&place.path("log"), 4, &mut training);
        training.kill().unwrap();
        training.wait().unwrap();
        assert_eq!(hash(&place.said(&format!("--steps 8 {run}"))), hash(&expected));
    }
}

/// Tests the first lines of a training on a device of another host. They name the device's kernels, the network paths
/// of tensors and of the replicas' gradient sums, and the operations without a kernel. A CPU of another host has the
/// same kernels as a local CPU, which compute in f32.
#[test]
fn the_start_names_the_kernels_and_the_paths_of_other_hosts() {
    let place = place();
    let (connection, token) = CONNECTIONS[3];
    let server = Server::start(&format!("--port 0 --key @key {connection}"), &place);
    let lent = format!("{}/0", server.host);
    let said = |flags: &str| {
        let output = place.run(&format!("--steps 1 {token} --device cpu,{lent} {flags}"));
        let said = place.shown(&output) + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{flags}: {said}");
        assert!(said.contains(&format!("`{lent}` computes by Stageline's kernels for CPUs, in f32")), "{said}");
        said
    };
    let fell_back = "of stage 1 is computed by burn's own operations";
    let stages = said("--stages 2");
    assert!(stages.contains(&format!("tensors go over the network without a detour: cpu and {lent}")), "{stages}");
    assert!(!stages.contains("gradient sums") && !stages.contains(fell_back), "{stages}");
    assert!(!stages.contains("compiling"), "a lent CPU compiles none: {stages}");
    let replicas = said("--stages 1 --replicas 2");
    let path = format!("gradient sums of replicas go over the network without a detour: cpu and {lent}");
    assert!(replicas.contains(&path) && !replicas.contains("tensors go"), "{replicas}");
    assert!(said("--stages 2 --precision bf16").contains(fell_back));
}

/// Tests that a training's log (its JSON-lines file) has the speed of each network link. By default, steps 0 and 20 are
/// synchronised: workers wait for their device after every action. Without synchronised steps, measured times are only
/// those of giving work to the devices, and `stageline predict` warns of that.
#[test]
fn the_log_has_link_speeds_and_the_clock_of_each_step() {
    let place = place();
    let (connection, token) = CONNECTIONS[3];
    let servers = servers([connection; 3], &place);
    let devices = devices(&servers);
    for (flags, expected) in [("--steps 21", vec![0, 20]), ("--steps 4 --synchronise-every 0", vec![])] {
        place.said(&format!("--log @log {token} {devices} {flags}"));
        let log = fs::read_to_string(place.path("log")).unwrap();
        let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let links = lines[0]["links"].as_array().unwrap();
        let speed = |link: &Value| [&link["latency"], &link["bandwidth"]].map(|figure| figure.as_f64().unwrap());
        let sound = |[latency, bandwidth]: [f64; 2]| (0.0..60.0).contains(&latency) && bandwidth > 0.0;
        assert!(links.len() == 3 && links.iter().map(speed).all(sound), "{links:?}");
        let steps: Vec<_> = lines.iter().filter(|line| line["step"].is_u64()).collect();
        let synchronised = (0..steps.len()).filter(|&step| steps[step]["synchronised"] == true);
        assert_eq!(synchronised.collect::<Vec<_>>(), expected);
        let predicted = program("stageline").args(["predict", "--from"]).arg(place.path("log")).output().unwrap();
        let said = String::from_utf8_lossy(&predicted.stderr);
        assert!(predicted.status.success(), "{said}");
        assert_eq!(said.contains("has the times of giving work to the devices"), expected.is_empty(), "{said}");
        fs::remove_file(place.path("log")).unwrap();
    }
}

#[test]
fn a_server_creates_a_missing_token_and_keeps_an_existing_one() {
    let place = Place::new();
    let served_with_it = || {
        let server = Server::start("--port 0 --key @key --relays disabled --token-file @new", &place);
        place.said(&format!("--steps 1 --stages 2 --device cpu,{}/0 --token-file @new", server.host));
        fs::read_to_string(place.path("new")).unwrap()
    };
    let token = served_with_it();
    assert_eq!(token.trim_end().len(), 64, "{token}");
    assert_eq!(served_with_it(), token);
    let other = Server::start("--port 0 --key @key --relays disabled --token-file @newer", &place);
    assert_ne!(fs::read_to_string(place.path("newer")).unwrap(), token);
    let said = place.refused(&format!("--steps 1 --device {}/0 --token-file @new", other.host));
    assert!(said.contains("refuses this program"), "{said}");
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(place.path("new")).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }
}

#[test]
fn every_unusable_device_is_refused_with_the_reason() {
    let place = place();
    let [web, iroh] = [CONNECTIONS[1], CONNECTIONS[3]]
        .map(|(connection, _)| Server::start(&format!("--port 0 --key @key {connection}"), &place));
    let refused = |flags: &str| place.refused(&format!("--steps 1 {flags}"));
    let refuses = "refuses this program; give the token that `stageline serve` was given there";
    for host in [&web.host, &iroh.host] {
        for token in ["", "--token-file @other"] {
            let said = refused(&format!("--device {host}/0 {token}"));
            assert!(said.contains(&format!("`{host}/0` {refuses}")), "{said}");
        }
        let said = refused(&format!("{TOKEN} --device {host}/0,{host}/3"));
        assert!(said.contains(&format!("`{host}/3` is not served: there are 1 devices, from 0 to 0")), "{said}");
    }
    // An id that belongs to another server cannot be reached at this server's address.
    let id_and_address = |server: &Server| {
        let (id, address) = server.host.strip_prefix("iroh:").unwrap().split_once('@').unwrap();
        (id.to_owned(), address.to_owned())
    };
    let (_, address) = id_and_address(&iroh);
    let (other, _) = id_and_address(&Server::start("--port 0 --key @other-key --allow-anyone", &place));
    let said = refused(&format!("{TOKEN} --device iroh:{other}@{address}/0"));
    assert!(said.contains(&format!("`iroh:{other}@{address}/0` cannot be reached")), "{said}");
    for flag in ["--memory 8", "--recompute auto"] {
        let said = refused(&format!("{TOKEN} --device {}/0 {flag}", web.host));
        assert!(said.contains("the memory of a step cannot be measured: "), "{flag}: {said}");
    }
    let said = refused("--token-file @nothing --device cpu");
    assert!(said.contains("--token-file @nothing"), "{said}");
}

#[test]
fn a_server_names_what_it_cannot_serve_and_ends_on_sigterm() {
    let place = place();
    fs::write(place.path("bad-key"), "no key").unwrap();
    fs::write(place.path("empty"), "\n").unwrap();
    let (taken, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let [port, udp_port] = [taken.local_addr(), udp.local_addr()].map(|address| address.unwrap().port());
    let cannot = "cannot be bound";
    for (flags, expected) in [
        (format!("--transport websocket --allow-anyone --port {port}"), format!("127.0.0.1:{port} {cannot}")),
        (format!("--allow-anyone --key @key --port {udp_port}"), format!("127.0.0.1:{udp_port} {cannot}")),
        ("--token-file @token --key @key --listen 192.0.2.1".to_owned(), format!("192.0.2.1:4433 {cannot}")),
        ("--allow-anyone --key @key --listen 0.0.0.0".to_owned(), "listens on this host only".to_owned()),
        ("--allow-anyone --key @bad-key".to_owned(), "bad-key cannot be used".to_owned()),
        ("--allow-anyone --relays public --key @key".to_owned(), "listens on this host only".to_owned()),
        ("--token-file @empty".to_owned(), "its first line is empty".to_owned()),
        ("--token-file @token --device ws://gpu:1/0".to_owned(), "run `stageline serve` on that host".to_owned()),
        (String::new(), "--token-file".to_owned()),
    ] {
        let output = command(&flags, &place).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(&expected), "{flags}: {said}");
    }
    for (connection, _) in CONNECTIONS {
        let mut server = Server::start(&format!("--port 0 --key @key {connection}"), &place);
        let asked = Command::new("kill").args(["-TERM", &server.process.id().to_string()]).status().unwrap();
        assert!(asked.success() && server.process.wait().unwrap().success(), "{connection}");
    }
}

/// Starts a device server of burn, as a server of another version or program, and returns the server's name. A client
/// asks every server for its version by the request `stageline/hello`. This server answers with the numbers `greeting`,
/// or does not know the request if `greeting` is `None`.
fn other_server(greeting: Option<[f32; 5]>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = format!("ws://{}", listener.local_addr().unwrap());
    let mut server = RemoteServer::new([Device::flex()]);
    if let Some(greeting) = greeting {
        server = server.with_custom_op::<Flex, _>("stageline/hello", move |tensors, asked, device| {
            let answer = Flex::float_from_data(TensorData::from(greeting), device);
            tensors.register_float_tensor::<Flex>(&asked.outputs[0].id, answer);
        });
    }
    thread::spawn(move || {
        // `serve_async` installs neither signal handlers nor a tracing subscriber in this process.
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(server.serve_async(WebSocketTransport::from_listener(listener))).unwrap();
    });
    host
}

#[test]
fn servers_of_other_versions_are_refused_by_name() {
    let place = place();
    let (other, silent) = (other_server(Some([9.0, 8.0, 7.0, 1.0, 1.0])), other_server(None));
    let said = place.refused(&format!("--steps 1 --device {other}/0,{silent}/0"));
    let ours = env!("CARGO_PKG_VERSION");
    let expected = format!(
        "`{other}/0` is served by stageline 9.8.7 with operations 1, and this program is stageline {ours} with"
    );
    assert!(said.contains(&expected), "{said}");
    let expected = format!("`{silent}/0` is served by something else than `stageline serve`");
    assert!(said.contains(&expected), "{said}");
}

/// Tests that `build` rejects a stage on a remote device if the device was not opened by its name
/// (`DeviceName::open_all`).
#[test]
fn a_device_that_was_opened_without_its_name_is_refused() {
    let host = RemoteHost::websocket(&other_server(None));
    let config = StageConfig::new(Device::remote_options(&host).init().unwrap(), SgdConfig::new().init(), 0.1);
    let refused = Pipeline::builder().loss(Mlp::new(0, 4, 1).error, config).build().err().unwrap();
    assert!(matches!(refused, BuildError::UnknownServer { stage: 0, .. }), "{refused}");
    assert!(refused.to_string().contains("`DeviceName::open_all`"), "{refused}");
}

/// Stops or kills a process, and returns when it no longer runs. After `kill` returns, the threads of a process still
/// run until one of them has taken the signal.
fn halt(process: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
    let runs = |status: String| !["State:\tT", "State:\tZ"].iter().any(|state| status.contains(state));
    while fs::read_to_string(format!("/proc/{process}/status")).is_ok_and(runs) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Tests that `build` ends with an error that names the host, if a device server is frozen or killed before modules are
/// copied to it.
#[test]
fn a_host_that_is_lost_before_modules_are_copied_is_named() {
    let place = place();
    for ((connection, _), signal) in [(CONNECTIONS[0], "-STOP"), (CONNECTIONS[2], "-STOP"), (CONNECTIONS[0], "-KILL")] {
        let server = Server::start(&format!("--port 0 --key @lost {connection}"), &place);
        let device = DeviceName::parse_list(&format!("{}/0", server.host)).unwrap().remove(0).open().unwrap();
        halt(server.process.id(), signal);
        let config = StageConfig::new(device, SgdConfig::new().init(), 0.1);
        let watchdog = Watchdog { floor: Duration::from_secs(2), ..Watchdog::default() };
        let builder = Pipeline::builder().loss(Mlp::new(0, 16, 1).error, config).watchdog(Some(watchdog));
        let lost = builder.build().err().expect("nothing can be copied to the host");
        let BuildError::HostsLost { hosts } = &lost else { panic!("{connection}, {signal}: {lost}") };
        assert_eq!(hosts[0].host.to_string(), server.host, "{signal}: {lost}");
    }
}

/// Tests a device server that is restarted at once with the same key and port: the training ends with the error of a
/// lost host, because the restarted server has lost its tensors.
#[test]
fn a_server_that_was_restarted_is_a_lost_host() {
    let place = place();
    let (connection, token) = CONNECTIONS[3];
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = || Server::start(&format!("--port {free} --key @again --listen 127.0.0.1 {connection}"), &place);
    let mut server = start();
    let run = format!("--stages 2 --watchdog 2 --log @log {token}");
    let mut command = place.command(&format!("--steps 400 --device cpu,{}/0 {run}", server.host));
    let mut training = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_lines(&place.path("log"), 4, &mut training);
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    let again = start();
    let output = training.wait_with_output().unwrap();
    let said = place.shown(&output);
    let expected = format!("Error: the host of stage 1 (`{}`) is lost: ", again.host);
    assert!(!output.status.success() && said.contains(&expected), "{connection}: {said}");
}

/// Tests the loss of a host that runs a stage of data-parallel replica 1 and none of replica 0: the training ends with
/// an error that names the host.
#[test]
fn a_lost_host_of_another_replica_is_named_and_the_training_ends() {
    let place = place();
    let (connection, token) = CONNECTIONS[3];
    let servers = servers([connection; 3], &place);
    let hosts: Vec<_> = servers.iter().map(|server| format!("{}/0", server.host)).collect();
    let keeping = "--checkpoint @kept --every 1 --watchdog 3 --log @log";
    let run = format!("--replicas 2 --stages 2 --micro-batches 4 {token} {keeping}");
    let mut command = place.command(&format!("--steps 400 --device cpu,{} {run}", hosts.join(",")));
    let mut training = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_lines(&place.path("log"), 4, &mut training);
    halt(servers[2].process.id(), "-STOP");
    let output = training.wait_with_output().unwrap();
    let said = place.shown(&output);
    let expected = format!("Error: the host of stage 1 of replica 1 (`{}`) is lost: ", servers[2].host);
    assert!(!output.status.success() && said.contains(&expected), "{connection}: {said}");
}

/// Sends a signal such as SIGKILL to a server that runs a stage of a training. The error must name the server's host.
/// The training must resume with this stage on another server, with the same bits as a training without servers.
fn resumes_elsewhere_after(signal: &str, connection: &str, token: &str) {
    let place = place();
    let servers = servers([connection; 3], &place);
    let run = format!("--checkpoint @kept --every 1 --watchdog 3 {token}");
    let mut command = place.command(&format!("--steps 400 --log @log {run} {}", devices(&servers)));
    let mut training = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_lines(&place.path("log"), 4, &mut training);
    halt(servers[1].process.id(), signal);
    let output = training.wait_with_output().unwrap();
    let said = place.shown(&output);
    assert!(!output.status.success(), "{said}");
    let host = &servers[1].host;
    assert!(said.contains(&format!("Error: the host of stage 2 (`{host}`) is lost: ")), "{signal}: {said}");

    // The lost stage moves to another server.
    let other = Server::start(&format!("--port 0 --key @another-key {connection}"), &place);
    let devices = devices(&servers).replace(host, &other.host);
    let kept = fs::read_dir(place.path("kept")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let done: usize = kept.filter_map(|name| name.rsplit_once("-step-")?.1.parse().ok()).max().unwrap();
    let steps = done + 2;
    let resumed = place.said(&format!("--resume latest {run} --steps {steps} {devices}"));
    let whole = place.said(&format!("--steps {steps} --schedule-steps 400 --stages 4"));
    assert_eq!(hash(&resumed), hash(&whole), "{signal}");
}

#[test]
fn a_killed_host_is_named_and_its_stage_resumes_elsewhere() {
    for (connection, token) in [CONNECTIONS[0], CONNECTIONS[3]] {
        resumes_elsewhere_after("-KILL", connection, token);
    }
}

#[test]
fn a_frozen_host_is_named_and_its_stage_resumes_elsewhere() {
    for (connection, token) in [CONNECTIONS[1], CONNECTIONS[2]] {
        resumes_elsewhere_after("-STOP", connection, token);
    }
}

/// Connects to the WebSocket port of a device server, sends `request`, and returns the bytes that the server sends
/// until it closes the connection.
fn answer(server: &Server, request: &[u8]) -> Vec<u8> {
    let address = server.host.strip_prefix("ws://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    // The server may close the connection before it has read the whole request.
    let _ = stream.write_all(request);
    let mut read = Vec::new();
    let _ = stream.read_to_end(&mut read);
    read
}

const UPGRADE: &str = "GET /session HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

#[test]
fn web_pages_and_requests_without_end_are_rejected() {
    let place = place();
    let (connection, token) = CONNECTIONS[1];
    let server = Server::start(&format!("--port 0 --key @key {connection}"), &place);
    let page = answer(&server, format!("{UPGRADE}Origin: http://evil.example\r\n\r\n").as_bytes());
    assert!(page.starts_with(b"HTTP/1.1 403"), "{}", String::from_utf8_lossy(&page));
    assert_eq!(answer(&server, &vec![b'a'; 100_000]), b"");
    // The server rejects a first message of a gigabyte by its header. Its answer is the handshake of RFC 6455, section
    // 1.3.
    let gigabyte = [0x82, 0xff, 0, 0, 0, 0, 0x40, 0, 0, 0, 1, 2, 3, 4];
    let handshake = answer(&server, &[format!("{UPGRADE}\r\n").as_bytes(), &gigabyte].concat());
    let handshake = String::from_utf8_lossy(&handshake).into_owned();
    assert!(handshake.is_empty() || handshake.starts_with("HTTP/1.1 101"), "{handshake}");
    // After these rejected requests, the server still serves a training.
    place.said(&format!("--steps 1 --stages 2 --device cpu,{}/0 {token}", server.host));
}

#[test]
fn clients_that_open_no_session_are_hung_up_on_and_do_not_keep_others_out() {
    let place = place();
    let (connection, token) = CONNECTIONS[1];
    let server = Server::start(&format!("--port 0 --key @key {connection}"), &place);
    let address = server.host.strip_prefix("ws://").unwrap().to_owned();
    // A client opens as many connections as it may have, and 8 more, which the server closes at once. A read waits
    // until its connection ends.
    const ALLOWED: usize = 32;
    let mut idle: Vec<_> = (0..ALLOWED + 8).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let ends = |stream: &mut TcpStream| matches!(stream.read(&mut [0]), Ok(0) | Err(_));
    assert!(idle[ALLOWED..].iter_mut().all(ends), "a client has more connections than it may have");
    idle[0].set_nonblocking(true).unwrap();
    let still_open = idle[0].peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    assert!(still_open, "the connections above the limit ended only with the others");
    idle[0].set_nonblocking(false).unwrap();
    // The server also closes the connections within the limit, because the client opens no session on them.
    assert!(idle[..ALLOWED].iter_mut().all(ends));
    place.said(&format!("--steps 1 --stages 2 --device cpu,{}/0 {token}", server.host));
}
