//! The gate: a proxy in front of burn's WebSocket server. It limits clients that have not yet opened a session (a queue
//! of requests to one device).
//!
//! burn accepts messages of 1 GiB from anyone who connects. Therefore the gate listens in burn's place, and burn itself
//! listens only on a port that other hosts cannot reach. The gate reads the head of the HTTP request and the first
//! message within limits, and then forwards everything. After the first message, burn reads nothing more before it has
//! accepted the token.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::limits;

/// Largest accepted size (8 KiB) of an HTTP request's head: its first line and its header fields.
const HEAD: usize = 8 << 10;

/// The time (100 ms) that the server waits after it failed to accept a WebSocket connection, for example because the
/// process has too many open files.
const AFTER_A_FAILURE: Duration = Duration::from_millis(100);

/// TCP keepalive settings for a client's connection: after 10 s without packets, a probe is sent every 5 s until the
/// connection counts as broken. A client whose host loses power or network cannot close its connection. Without probes,
/// the server would keep the client's sessions and their memory for ever.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(10)).with_interval(Duration::from_secs(5));

/// The time (60 s) after which a connection counts as broken if the client acknowledges none of the data sent to it
/// (`TCP_USER_TIMEOUT`). Needed because TCP sends no keepalive probes while data is unacknowledged.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(60);

/// Accepts WebSocket connections until the process ends, and forwards them to burn's server at the address `inner`. A
/// client is refused if it has too many connections, or if it sends too much or waits too long before it opens a
/// session (a queue of requests to one device).
pub(super) async fn accept(listener: TcpListener, inner: SocketAddr) {
    let waiting = Arc::new(Waiting::default());
    loop {
        let (client, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a client cannot be accepted");
                sleep(AFTER_A_FAILURE).await;
                continue;
            }
        };
        let Some(place) = Waiting::enter(&waiting, address.ip()) else {
            tracing::warn!(%address, "a client is refused: it, or all clients together, have too many connections that have opened no session; it can try again");
            continue;
        };
        tokio::spawn(async move {
            if let Err(error) = pass(client, inner, place).await {
                tracing::warn!(%address, %error, "a client is refused, or its connection broke");
            }
        });
    }
}

/// Number of open connections without a session (a client's queue of requests to one device), for each client IP
/// address. The server limits these numbers.
#[derive(Default)]
struct Waiting(Mutex<HashMap<IpAddr, usize>>);

/// A guard that counts one connection as having no session yet. Dropping it ends the count, when the client has opened
/// a session or is gone.
struct Place {
    waiting: Arc<Waiting>,
    client: IpAddr,
}

impl Waiting {
    /// Counts a new connection of a client as having no session yet, until the returned guard is dropped. Returns
    /// `None`, so that the caller refuses the connection, if this client or all clients together have too many such
    /// connections.
    fn enter(waiting: &Arc<Self>, client: IpAddr) -> Option<Place> {
        let mut counts = waiting.0.lock();
        let all: usize = counts.values().sum();
        let own = counts.get(&client).copied().unwrap_or(0);
        if own >= limits::CONNECTIONS || all >= limits::ALL_CONNECTIONS {
            return None;
        }
        counts.insert(client, own + 1);
        Some(Place { waiting: Arc::clone(waiting), client })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.waiting.0.lock();
        if let Some(count) = counts.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.client);
            }
        }
    }
}

/// Forwards a WebSocket client's connection to burn's server at the address `inner`. The client is subject to limits of
/// time and bytes until its first message is forwarded. Then `place`, which counts the connection as having no session,
/// is dropped.
async fn pass(mut client: TcpStream, inner: SocketAddr, place: Place) -> io::Result<()> {
    let late = || io::Error::other(format!("it opened no session within {} s", limits::HANDSHAKE.as_secs()));
    let admitted = timeout(limits::HANDSHAKE, admitted(&mut client, inner)).await.map_err(|_| late())?;
    drop(place);
    let Some(mut server) = admitted? else { return Ok(()) };
    client.set_nodelay(true)?;
    SockRef::from(&client).set_tcp_keepalive(&KEEPALIVE)?;
    #[cfg(target_os = "linux")]
    SockRef::from(&client).set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    server.set_nodelay(true)?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}

/// Forwards a client's HTTP request and first WebSocket message to burn's server at the address `inner`. Returns the
/// connection to that server, or `None` if the server closed it. Fails if the client sends too many bytes, or if the
/// request comes from a web page.
async fn admitted(client: &mut TcpStream, inner: SocketAddr) -> io::Result<Option<TcpStream>> {
    let (head, rest) = head(client).await?;
    if has_origin(&head) {
        client.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await?;
        return Err(io::Error::other("its request has an Origin, as those of web pages do"));
    }
    let mut server = TcpStream::connect(inner).await?;
    server.write_all(&head).await?;
    // The server answers the request before the client sends its first message.
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let message = async {
        let mut source = rest.as_slice().chain(&mut from_client);
        first_message(&mut source, &mut to_server).await
    };
    let hung_up = tokio::select! {
        passed = message => passed.map(|()| false)?,
        ended = copy(&mut from_server, &mut to_client) => ended.map(|_| true)?,
    };
    Ok((!hung_up).then_some(server))
}

/// Reads the head of a client's HTTP request: its first line and its header fields, up to an empty line. Returns the
/// head's bytes, and any bytes read beyond it. Fails if the head is too long.
async fn head(client: &mut TcpStream) -> io::Result<(Vec<u8>, Vec<u8>)> {
    const END: &[u8] = b"\r\n\r\n";
    let mut read = Vec::with_capacity(HEAD);
    loop {
        if let Some(end) = read.windows(END.len()).position(|window| window == END) {
            let rest = read.split_off(end + END.len());
            return Ok((read, rest));
        }
        if read.len() >= HEAD {
            return Err(io::Error::other(format!("the head of its request has more than {HEAD} bytes")));
        }
        let mut part = [0; 1024];
        let count = client.read(&mut part).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        read.extend(&part[..count]);
    }
}

/// Whether an HTTP request comes from a web page. Browsers send the header `Origin` (RFC 6455, section 10.2), and other
/// programs do not.
fn has_origin(head: &[u8]) -> bool {
    let names = head.split(|&byte| byte == b'\n').filter_map(|line| line.split(|&byte| byte == b':').next());
    names.map(<[u8]>::trim_ascii).any(|name| name.eq_ignore_ascii_case(b"origin"))
}

/// Forwards a client's WebSocket frames to burn's server up to the end of the first message (RFC 6455, section 5.2).
/// Fails if the frames have more bytes than a client may send before it has opened a session (a queue of requests to
/// one device).
async fn first_message(
    source: &mut (impl AsyncReadExt + Unpin),
    server: &mut (impl AsyncWriteExt + Unpin),
) -> io::Result<()> {
    const FINAL: u8 = 0x80;
    const CONTROL: u8 = 0x08;
    const MASKED: u8 = 0x80;
    let mut room = limits::BYTES;
    loop {
        let mut start = [0; 2];
        source.read_exact(&mut start).await?;
        let mut header = start.to_vec();
        let extended = match start[1] & !MASKED {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mut length = [0; 8];
        source.read_exact(&mut length[8 - extended..]).await?;
        header.extend(&length[8 - extended..]);
        let length = if extended > 0 { u64::from_be_bytes(length) } else { u64::from(start[1] & !MASKED) };
        let masked = length.saturating_add(if start[1] & MASKED > 0 { 4 } else { 0 });
        let Some(left) = room.checked_sub(masked.saturating_add(header.len() as u64)) else {
            return Err(io::Error::other(format!("its request for a session has more than {} bytes", limits::BYTES)));
        };
        room = left;
        server.write_all(&header).await?;
        copy(&mut (&mut *source).take(masked), server).await?;
        if start[0] & CONTROL == 0 && start[0] & FINAL > 0 {
            return server.flush().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forwards a client's WebSocket frames up to the end of the first message, as the server does. Returns the
    /// forwarded bytes. The error says why the server would refuse the client.
    fn passed(frames: &[u8]) -> Result<Vec<u8>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut server = Vec::new();
        let mut source = frames;
        let ended = runtime.block_on(first_message(&mut source, &mut server));
        ended.map(|()| server).map_err(|error| error.to_string())
    }

    /// Tests that exactly the bytes of a client's first WebSocket message are forwarded, and none after it. Among the
    /// messages are the masked and the fragmented "Hello" of RFC 6455, section 5.7.
    #[test]
    fn the_first_message_is_passed_and_what_follows_is_not_read() {
        let masked = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
        let fragments = [0x01, 0x03, 0x48, 0x65, 0x6c, 0x80, 0x02, 0x6c, 0x6f];
        let ping = [0x89, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];
        let long: Vec<u8> = [0x82, 0x7e, 0x01, 0x00].into_iter().chain([7; 256]).collect();
        for message in [&masked[..], &fragments, &long, &[&ping[..], &masked].concat()] {
            assert_eq!(passed(&[message, b"more"].concat()).unwrap(), message);
        }
    }

    #[test]
    fn a_message_of_many_bytes_is_refused_by_its_header() {
        let gigabyte = [0x82, 0xff, 0, 0, 0, 0, 0x40, 0, 0, 0];
        assert!(passed(&gigabyte).unwrap_err().contains("more than 1048576 bytes"));
        let largest = [0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        assert!(passed(&largest).unwrap_err().contains("more than"));
        // Fragments of one message count together.
        let pieces = [0x02, 0x7f, 0, 0, 0, 0, 0, 0x0f, 0xff, 0x00]
            .into_iter()
            .chain(std::iter::repeat_n(0, 0xf_ff00))
            .chain([0x00, 0x7e, 2, 0]);
        assert!(passed(&pieces.collect::<Vec<_>>()).unwrap_err().contains("more than"));
    }

    #[test]
    fn web_pages_are_told_by_their_origin() {
        assert!(has_origin(b"GET / HTTP/1.1\r\nhost: a\r\norigin : http://b\r\n\r\n"));
        assert!(!has_origin(b"GET /origin HTTP/1.1\r\nHost: origin\r\nX-Origin: b\r\n\r\n"));
    }
}
