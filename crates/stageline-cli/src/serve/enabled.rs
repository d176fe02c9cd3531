//! `stageline serve`: this host's devices, for stages of a training elsewhere.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use stageline::DeviceName;
use stageline::remote::{Admission, Listen, Relays, Server, Token};
use tracing::Level;

use crate::output::print;

/// Serves devices of this host to a training on another one
///
/// The training names them with `--device`, as this command prints them, and drives them from its own threads: nothing else has to
/// be there. Servers hand tensors to each other directly, so they must reach one another, too. Ctrl-C ends it.
#[derive(Args)]
pub(crate) struct Flags {
    /// `cpu`, or `cuda:0` and so on: a list, of one kind
    #[arg(long, default_value = "cpu")]
    device: String,
    /// How others reach it: iroh is authenticated and encrypted; websocket is neither, and for networks that are trusted
    #[arg(long, default_value = "iroh")]
    transport: TransportName,
    /// A file whose first line is a secret that a training has to know, made where there is none
    #[arg(long, value_name = "FILE", required_unless_present = "allow_anyone")]
    token_file: Option<PathBuf>,
    /// Asks for no secret, and listens on this host only
    #[arg(long, conflicts_with = "token_file")]
    allow_anyone: bool,
    /// The file of the server's key, made where there is none: as long as it is kept, so is the id
    /// [default: stageline-server-PORT.key]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// How it is found through firewalls: `public` asks the relays and the lookup service of n0, a URL asks a relay of one's own, and
    /// with `disabled` only the address is used
    #[arg(long, default_value = "disabled")]
    relays: Relays,
    /// The address of this host at which it listens [default: all IPv4 addresses, or 127.0.0.1 with --allow-anyone]
    #[arg(long, value_name = "IP")]
    listen: Option<IpAddr>,
    /// The port: UDP for iroh, TCP for websocket; 0 is any that is free
    #[arg(long, default_value_t = 4433)]
    port: u16,
    /// Cores that kernels may use [default: all]
    #[arg(long)]
    cores: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum TransportName {
    Iroh,
    Websocket,
}

pub(crate) fn run(flags: Flags) -> anyhow::Result<()> {
    // Why a session was refused, or a tensor did not arrive, is known here only.
    tracing_subscriber::fmt().with_max_level(Level::WARN).with_writer(std::io::stderr).with_target(false).init();
    if let Some(cores) = flags.cores {
        ensure!(cores > 0, "--cores 0: give 1 or more");
        rayon::ThreadPoolBuilder::new().num_threads(cores).build_global().context("--cores")?;
    }
    let names = DeviceName::parse_list(&flags.device).context("--device")?;
    if let Some(remote) = names.iter().find(|name| matches!(name, DeviceName::Remote(_))) {
        bail!("--device: `{remote}` is on another host; serve it there");
    }
    let devices = DeviceName::open_all(&names, None).context("--device")?;
    let admission = match &flags.token_file {
        None => Admission::AnyoneHere,
        Some(path) => {
            let token = Token::read_or_create(path).with_context(|| format!("--token-file {}", path.display()))?;
            if Token::others_can_read(path) {
                let path = path.display();
                eprintln!(
                    "warning: other users of this host can read {path}; let its owner alone read it: chmod 600 {path}"
                );
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
        eprintln!("warning: WebSocket is not encrypted: who can read the network sees the token and all tensors");
    }
    let list = |host: &str| (0..count).map(|index| format!("{host}/{index}")).collect::<Vec<_>>().join(",");
    let token = flags.token_file.as_deref().map_or_else(String::new, |path| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        format!(", whose --token-file is a copy of {}", path.display())
    });
    let lines: Vec<_> = server.names().iter().map(|host| format!("--device {}\n", list(host))).collect();
    print(&format!("serving {}; for a training elsewhere{token}:\n{}", flags.device, lines.concat()))?;
    server.serve()?;
    Ok(())
}
