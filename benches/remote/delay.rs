//! A relay that holds back everything for a time, as a long cable does: latency, and no limit of the bandwidth.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The address before which it is, for as long as the program runs.
pub fn before(server: SocketAddr, delay: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address");
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(server) else { return };
            let copy = |stream: &TcpStream| stream.try_clone().expect("a handle");
            hold(copy(&client), copy(&server), delay);
            hold(server, client, delay);
        }
    });
    address
}

/// One way.
fn hold(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    to.set_nodelay(true).expect("a connection");
    let (held, due) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if held.send((Instant::now() + delay, buffer[..count].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (when, bytes) in due {
            thread::sleep(when.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}
