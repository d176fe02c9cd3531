//! Server processes of this program, reached through a delay.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use burn::tensor::Device;
use stageline::remote::{Admission, Listen, Server};

use crate::{delay, open};

/// They end when this is dropped.
pub struct Servers {
    processes: Vec<Child>,
    names: Vec<String>,
}

impl Servers {
    pub fn start(count: usize, delay: Duration) -> Self {
        let (processes, names) = (0..count).map(|_| start(delay)).unzip();
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
fn start(delay: Duration) -> (Child, String) {
    let program = std::env::current_exe().expect("this program");
    let mut process =
        Command::new(program).arg("--serve").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a server");
    let mut line = String::new();
    let read = BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut line);
    read.expect("its address");
    let address = line.trim().strip_prefix("ws://").expect("its address").parse().expect("an address");
    let address = if delay.is_zero() { address } else { delay::before(address, delay) };
    (process, format!("ws://{address}/0"))
}

/// What such a process does; one core each, as a stage has.
pub fn serve() {
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global().expect("the first pool");
    let server =
        Server::bind(vec![Device::flex()], Admission::AnyoneHere, Listen::WebSocket { port: 0 }).expect("a free port");
    println!("{}", server.names()[0]);
    server.serve().expect("a network");
}
