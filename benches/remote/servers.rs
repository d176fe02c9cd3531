//! Starts the remote bench's server processes. Each is a new process of the bench's own program.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

use burn::tensor::Device;
use clap::ValueEnum;
use stageline::remote::{Admission, Listen, Relays, Server};

use crate::open;

/// The network transport over which the bench reaches its server processes.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Transport {
    Websocket,
    Iroh,
}

/// The bench's running server processes, with the names of their devices. Dropping this value kills the processes.
pub struct Servers {
    processes: Vec<Child>,
    names: Vec<String>,
}

impl Servers {
    /// Starts `count` server processes, and waits until each has printed the name of its device.
    pub fn start(count: usize, transport: Transport) -> Self {
        let (processes, names) = (0..count).map(|_| start(transport)).unzip();
        Self { processes, names }
    }

    /// Opens each server process's device.
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

/// Starts a server process, and returns it with the name of its device.
fn start(transport: Transport) -> (Child, String) {
    let program = std::env::current_exe().expect("this program");
    let arguments = ["serve", transport.to_possible_value().expect("shown").get_name()].map(str::to_owned);
    let mut server = Command::new(program);
    let mut process = server.args(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a server");
    let mut name = String::new();
    let read = BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut name);
    read.expect("its name");
    (process, format!("{}/0", name.trim()))
}

/// Serves one CPU device to the bench until the process is killed. The device uses one core, like a stage on a local
/// thread. Each server process calls this function.
pub fn serve(transport: Transport) {
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global().expect("the first pool");
    let keys = tempfile::tempdir().expect("a folder");
    let address = (Ipv4Addr::LOCALHOST, 0).into();
    let listen = match transport {
        Transport::Websocket => Listen::WebSocket { address },
        Transport::Iroh => Listen::Iroh { identity: keys.path().join("key"), relays: Relays::Disabled, address },
    };
    let server = Server::bind(vec![Device::flex()], Admission::AnyoneHere, listen).expect("a free port");
    println!("{}", server.names()[0]);
    server.serve().expect("a network");
}
