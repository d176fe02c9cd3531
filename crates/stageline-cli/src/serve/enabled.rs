//! `stageline serve`: serves devices of this host to training programs on another host.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use stageline::DeviceName;
use stageline::remote::{Admission, Listen, Relays, Server, Token};
use tracing::Level;

use crate::output::{print, print_error};

/// Serves devices of this host to a training run on another host
///
/// The training program names the devices with `--device`, as this command prints them, and drives them from its own
/// threads. This host needs no model, data or settings. Servers send tensors to each other directly, so they must reach
/// each other. Ctrl-C stops the server.
#[derive(Args)]
pub(crate) struct Flags {
    /// Devices of this host to serve: `cpu`, or a list such as `cuda:0,cuda:1`; all of one kind
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Transport between this server and training programs: iroh is authenticated and encrypted; websocket is neither,
    /// and only for trusted networks
    #[arg(long, default_value = "iroh")]
    transport: TransportName,
    /// File whose first line is the secret that a training program must present; the file is created if it does not
    /// exist
    #[arg(long, value_name = "FILE", required_unless_present = "allow_anyone")]
    token_file: Option<PathBuf>,
    /// Accepts any training program without a secret, and listens for programs on this host only
    #[arg(long, conflicts_with = "token_file")]
    allow_anyone: bool,
    /// File of the server's secret key, created if it does not exist; the server has the same id as long as it has the
    /// same key [default: stageline-server-PORT.key]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Relay servers that connect iroh through firewalls: `public` for the public relays and lookup service of n0, the
    /// makers of iroh; a URL for a relay of your own; `disabled` to use only the address
    #[arg(long, default_value = "disabled")]
    relays: Relays,
    /// Address of this host to listen at [default: all IPv4 addresses, or 127.0.0.1 with --allow-anyone]
    #[arg(long, value_name = "IP")]
    listen: Option<IpAddr>,
    /// Port to listen at: a UDP port for iroh, a TCP port for websocket; 0 for any free port
    #[arg(long, default_value_t = 4433)]
    port: u16,
    /// Number of CPU cores that the server's compute kernels may use [default: all]
    #[arg(long)]
    cores: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum TransportName {
    Iroh,
    Websocket,
}

pub(crate) fn run(flags: Flags) -> anyhow::Result<()> {
    // The server logs warnings, because only it knows why a session was rejected or a tensor did not arrive.
    let warnings = tracing_subscriber::fmt().with_max_level(Level::WARN).with_ansi(false).with_target(false);
    warnings.with_writer(std::io::stderr).init();
    if let Some(cores) = flags.cores {
        ensure!(cores > 0, "--cores 0: give 1 or more");
        rayon::ThreadPoolBuilder::new().num_threads(cores).build_global().context("--cores")?;
    }
    let names = DeviceName::parse_list(&flags.device).context("--device")?;
    if let Some(remote) = names.iter().find(|name| matches!(name, DeviceName::Remote(_))) {
        bail!(
            "--device: `{remote}` is a device of another host, and a server lends only those of its own; run `stageline serve` on that host"
        );
    }
    let devices = DeviceName::open_all(&names, None).context("--device")?;
    let admission = match &flags.token_file {
        None => Admission::AnyoneHere,
        Some(path) => {
            let token = Token::read_or_create(path).with_context(|| format!("--token-file {}", path.display()))?;
            if Token::others_can_read(path) {
                let path = path.display();
                print_error(&format!(
                    "warning: other users of this host can read {path}; make it readable for its owner only: chmod 600 {path}\n"
                ));
            }
            Admission::Token(token)
        }
    };
    let all = if flags.allow_anyone { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
    let address = SocketAddr::new(flags.listen.unwrap_or(all.into()), flags.port);
    let listen = match flags.transport {
        TransportName::Iroh => {
            let key = || PathBuf::from(format!("stageline-server-{}.key", flags.port));
            Listen::Iroh { identity: flags.key.unwrap_or_else(key), relays: flags.relays, address }
        }
        TransportName::Websocket => Listen::WebSocket { address },
    };
    let count = devices.len();
    let server = Server::bind(devices, admission, listen)?;
    if flags.transport == TransportName::Websocket && !flags.allow_anyone {
        print_error(
            "warning: WebSocket is not encrypted: anyone who can read the network sees the token and all tensors\n",
        );
    }
    let list = |host: &str| (0..count).map(|index| format!("{host}/{index}")).collect::<Vec<_>>().join(",");
    let token = flags.token_file.as_deref().map_or_else(String::new, |path| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        format!(" with a copy of {} for --token-file,", path.display())
    });
    let lines: Vec<_> = server.names().iter().map(|host| format!("--device {}\n", list(host))).collect();
    print(&format!("serving {}; start the training{token} and one of these:\n{}", flags.device, lines.concat()))?;
    server.serve()?;
    Ok(())
}
