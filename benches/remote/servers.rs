//! Server processes of this program, reached through a delay.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use burn::tensor::Device;
use clap::ValueEnum;
use stageline::remote::{Admission, Listen, Relays, Server};

use crate::{delay, open};

/// How they are reached; a delay can be put before WebSockets only.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Transport {
    Websocket,
    Iroh,
}

/// They end when this is dropped.
pub struct Servers {
    processes: Vec<Child>,
    names: Vec<String>,
}

impl Servers {
    pub fn start(count: usize, transport: Transport, delay: Duration) -> Self {
        let (processes, names) = (0..count).map(|_| start(transport, delay)).unzip();
        Self { processes, names }
    }

    /// One of each.
    pub fn devices(&self) -> Vec<Device> {
        open(&self.names)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for process in &mut self.processes {
            process.kill().and_then(|()| process.wait()).expect("a server that ends");
        }
    }
}

/// A server, and what its device is called behind the delay.
fn start(transport: Transport, delay: Duration) -> (Child, String) {
    let program = std::env::current_exe().expect("this program");
    let arguments = ["serve", transport.to_possible_value().expect("shown").get_name()].map(str::to_owned);
    let mut server = Command::new(program);
    let mut process = server.args(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a server");
    let mut name = String::new();
    let read = BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut name);
    read.expect("its name");
    let name = name.trim();
    if delay.is_zero() {
        return (process, format!("{name}/0"));
    }
    let address = name.strip_prefix("ws://").expect("a WebSocket's address").parse().expect("an address");
    (process, format!("ws://{}/0", delay::before(address, delay)))
}

/// What such a process does; one core each, as a stage has.
pub fn serve(transport: Transport) {
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global().expect("the first pool");
    let keys = tempfile::tempdir().expect("a folder");
    let listen = match transport {
        Transport::Websocket => Listen::WebSocket { port: 0 },
        Transport::Iroh => Listen::Iroh { identity: keys.path().join("key"), relays: Relays::Disabled, port: 0 },
    };
    let server = Server::bind(vec![Device::flex()], Admission::AnyoneHere, listen).expect("a free port");
    println!("{}", server.names()[0]);
    server.serve().expect("a network");
}
