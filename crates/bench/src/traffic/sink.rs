//! A receiver that counts UDP packets, many in one system call, and records the highest packet
//! number.

use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use netdev::cpu::pin_current_thread;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, recvmmsg, setsockopt, sockopt};

use crate::lab::Guest;
use crate::{Error, Result};

/// Packets received with one system call.
pub(super) const BATCH: usize = 64;
/// Bytes that are read of each packet.
pub(super) const READ_LEN: usize = 64;
/// How often a waiting receiver checks whether the run is over.
const WAIT: Duration = Duration::from_millis(100);
/// The receive buffer, in bytes: room for the packets that arrive while the thread is not running.
const QUEUE_BYTES: usize = 16 << 20;

/// A running receiver. Dropping it ends it.
#[derive(Debug)]
pub struct Sink {
    shared: Arc<SinkState>,
    port: u16,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct SinkState {
    done: AtomicBool,
    received: AtomicU64,
    /// One more than the highest packet number seen.
    next: AtomicU64,
}

/// Starts a thread on the processor `cpu` that receives from `socket`. Returns the thread and the
/// port.
pub(super) fn start_receiver(
    socket: UdpSocket,
    cpu: usize,
    receive: impl FnOnce(&UdpSocket) + Send + 'static,
) -> std::io::Result<(u16, JoinHandle<()>)> {
    socket.set_read_timeout(Some(WAIT))?;
    // Errors are ignored: without the capability, the default buffer size is used.
    let _ = setsockopt(&socket, sockopt::RcvBufForce, &QUEUE_BYTES);
    let port = socket.local_addr()?.port();
    let work = move || {
        if let Err(error) = pin_current_thread(cpu) {
            tracing::warn!(%error, "a receiver stays where the kernel puts it");
        }
        receive(&socket);
    };
    let thread = std::thread::Builder::new().name("sink".into()).spawn(work)?;
    Ok((port, thread))
}

impl Sink {
    /// Counts UDP packets to `address` of `guest`, on a port that the kernel chooses. The thread
    /// runs on the guest's processor.
    ///
    /// # Errors
    /// The socket or the thread cannot be created.
    pub fn start(guest: &Guest, address: IpAddr) -> Result<Self> {
        let what = format!("receive UDP on {address} of {}", guest.name());
        let socket =
            guest.run(|| UdpSocket::bind((address, 0)))?.map_err(Error::io(what.clone()))?;
        Self::on(socket, guest.cpu()).map_err(Error::io(what))
    }

    fn on(socket: UdpSocket, cpu: usize) -> std::io::Result<Self> {
        let shared = Arc::new(SinkState::default());
        let state = Arc::clone(&shared);
        let (port, thread) = start_receiver(socket, cpu, move |socket| receive(socket, &state))?;
        Ok(Self { shared, port, thread: Some(thread) })
    }

    /// The UDP port at which packets are counted.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address and port at which packets are counted.
    pub fn at(&self, address: IpAddr) -> SocketAddr {
        SocketAddr::new(address, self.port)
    }

    /// Packets received so far.
    pub fn received(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }

    /// One more than the highest packet number received. The number is in the first eight bytes.
    pub fn next_number(&self) -> u64 {
        self.shared.next.load(Ordering::Relaxed)
    }

    fn end(&mut self) {
        self.shared.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.end();
    }
}

fn receive(socket: &UdpSocket, shared: &SinkState) {
    let mut headers = MultiHeaders::<()>::preallocate(BATCH, None);
    let mut packets = vec![[0; READ_LEN]; BATCH];
    while !shared.done.load(Ordering::Relaxed) {
        let lengths = match receive_batch(socket, &mut headers, &mut packets) {
            Ok(lengths) => lengths,
            Err(Errno::EAGAIN | Errno::EINTR) => continue,
            Err(error) => return tracing::warn!(%error, "a receiver has ended"),
        };
        let highest = lengths.iter().zip(&packets).filter_map(|(&len, packet)| {
            let number = packet[..len.min(READ_LEN)].first_chunk()?;
            Some(u64::from_be_bytes(*number).wrapping_add(1))
        });
        shared.next.fetch_max(highest.max().unwrap_or(0), Ordering::Relaxed);
        shared.received.fetch_add(lengths.len() as u64, Ordering::Relaxed);
    }
}

/// Receives packets with one system call. Returns their lengths, and writes their first bytes to
/// `packets`.
pub(super) fn receive_batch(
    socket: &UdpSocket,
    headers: &mut MultiHeaders<()>,
    packets: &mut [[u8; READ_LEN]],
) -> Result<Vec<usize>, Errno> {
    let mut slices: Vec<_> = packets.iter_mut().map(|p| [IoSliceMut::new(p)]).collect();
    let flags = MsgFlags::MSG_WAITFORONE;
    let received = recvmmsg(socket.as_raw_fd(), headers, &mut slices, flags, None)?;
    Ok(received.map(|message| message.bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stop;

    #[test]
    fn missing_packets_show_when_their_numbers_do_not_come() {
        let sink = Sink::on(UdpSocket::bind("127.0.0.1:0").unwrap(), 0).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for number in [0_u64, 1, 4, 3] {
            let bytes = number.to_be_bytes();
            sender.send_to(&bytes, sink.at("127.0.0.1".parse().unwrap())).unwrap();
        }
        Stop::new()
            .wait_for("four packets", Duration::from_secs(10), || {
                Ok((sink.received() == 4).then_some(()))
            })
            .unwrap();
        assert_eq!(sink.next_number(), 5);
    }
}
