//! The measurement inside the emulated machine: two guests of a lab exchange messages and a stream.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::{Counts, Wire, Workload};
use crate::lab::{Contender, Guest, Lab, Session, Shape, StatefulRules};
use crate::traffic::ping::first_ping;
use crate::{Error, Result, Stop};

/// Bytes of a message over TCP, and of a message over UDP.
const MESSAGE: usize = 1;
const DATAGRAM: usize = 16;
/// Bytes of one write of a stream.
const WRITE: usize = 64 << 10;
/// Open vSwitch 3.1 detects no processor before the machine has been up for ten seconds. While the
/// emulated machine is idle, its clock jumps, so this wait takes no real time.
const OVS_AGE: Duration = Duration::from_secs(12);
/// For a second after weft's kernel datapath punts a packet of a megaflow, it also sends the later
/// packets of that megaflow to userspace. The first packet of a connection is such a packet.
/// Messages and connections are therefore counted after this wait, which takes no real time either.
const SLOW_PATH_HOLD: Duration = Duration::from_millis(2500);
/// After this time of traffic in both directions, the kernel's connection tracking treats datagrams
/// as a stream.
const UDP_STREAM: Duration = Duration::from_millis(2500);
/// The number of parts in which round trips are timed. Periodic work of the machine takes a million
/// instructions, a message ten thousand. Every build has that work in other parts, so the median of
/// the parts is used.
const PARTS: u32 = 25;
/// How long any step may take, by the machine's own clock.
const LIMIT: Duration = Duration::from_secs(60);

/// The cost of `contender` in nanoseconds of this machine's clock. In the emulated machine, a
/// nanosecond is an instruction.
///
/// # Errors
/// The lab cannot be built, or traffic does not flow.
pub fn measure(
    contender: Contender,
    weft: &Path,
    workload: Workload,
    wire: Wire,
) -> Result<Counts> {
    let stop = Stop::new();
    let session = Session::open(Duration::from_secs(1), &stop)?;
    let shape = Shape { guests_per_host: 1, ..Shape::default() };
    let lab = Lab::build_as(&session, shape)?;
    if contender.is_ovs() {
        stop.sleep(OVS_AGE)?;
    }
    let mut attachment = contender.attach(&lab, weft)?;
    wire.apply(&lab, contender)?;
    let (from, to) = (lab.guest(0, 0), lab.guest(1, 0));
    first_ping(from, to, &mut attachment, &stop)
        .and_then(|mut pinger| pinger.run(3, &stop))
        .map_err(|error| attachment.with_diagnostics(error, &stop))?;
    let pair = Pair { from, to, rules: contender.stateful_rules() };
    let counts = Counts {
        tcp: tcp_round_trips(pair, workload)?,
        udp: udp_round_trips(pair, workload)?,
        stream: per_kib(stream(pair, workload)?, workload.stream_kib),
        connection: Some(connections(pair, workload)?),
    };
    attachment.check_running()?;
    attachment.stop()?;
    Ok(counts)
}

fn per_kib(time: Duration, kib: u32) -> f64 {
    time.as_nanos() as f64 / f64::from(kib)
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::io(what)(error)
}

/// The guests that exchange messages, and the rules that track their connections.
#[derive(Clone, Copy)]
struct Pair<'a> {
    from: &'a Guest,
    to: &'a Guest,
    rules: Option<StatefulRules>,
}

impl Pair<'_> {
    /// The address at which `from` reaches the socket of `to` with this port.
    fn service(self, port: u16) -> SocketAddr {
        let address = self.rules.map_or(self.to.ip4(), |rules| rules.service(self.to));
        SocketAddr::new(address.into(), port)
    }

    /// The address at which `to` reaches the socket of `from` with this port.
    fn client(self, port: u16) -> SocketAddr {
        let address = self.rules.map_or(self.from.ip4(), |rules| rules.client(self.from));
        SocketAddr::new(address.into(), port)
    }
}

/// A TCP connection between the guests: both of its ends.
fn connect(pair: Pair<'_>) -> Result<(TcpStream, TcpStream)> {
    let Pair { from, to, .. } = pair;
    let failed = failed("connect the guests");
    let at = SocketAddr::new(to.ip4().into(), 0);
    let listener = to.run(|| TcpListener::bind(at))?.map_err(&failed)?;
    let address = pair.service(listener.local_addr().map_err(&failed)?.port());
    let client = from.run(|| TcpStream::connect_timeout(&address, LIMIT))?.map_err(&failed)?;
    let (server, _) = listener.accept().map_err(&failed)?;
    for stream in [&client, &server] {
        let set = || {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.set_write_timeout(Some(LIMIT))
        };
        set().map_err(&failed)?;
    }
    Ok((client, server))
}

fn tcp_round_trips(pair: Pair<'_>, workload: Workload) -> Result<f64> {
    let (mut client, mut server) = connect(pair)?;
    let answer = move || -> std::io::Result<()> {
        let mut message = [0; MESSAGE];
        while server.read(&mut message)? > 0 {
            server.write_all(&message)?;
        }
        Ok(())
    };
    let ask = move |count: u32| -> std::io::Result<()> {
        let mut message = [0x5a; MESSAGE];
        (0..count).try_for_each(|_| {
            client.write_all(&message)?;
            client.read_exact(&mut message)
        })
    };
    exchange(workload, answer, ask).map_err(failed("round trips over TCP"))
}

/// Measures datagrams. With a contender that tracks connections, they first run for [`UDP_STREAM`].
fn udp_round_trips(pair: Pair<'_>, workload: Workload) -> Result<f64> {
    let failed = failed("round trips over UDP");
    let bind = |guest: &Guest| -> Result<UdpSocket> {
        let at = SocketAddr::new(guest.ip4().into(), 0);
        let socket = guest.run(|| UdpSocket::bind(at))?.map_err(&failed)?;
        socket.set_read_timeout(Some(LIMIT)).map_err(&failed)?;
        Ok(socket)
    };
    let (client, server) = (bind(pair.from)?, bind(pair.to)?);
    let mut is_stream = false;
    let connected = || {
        client.connect(pair.service(server.local_addr()?.port()))?;
        server.connect(pair.client(client.local_addr()?.port()))
    };
    connected().map_err(&failed)?;
    let answer = move || -> std::io::Result<()> {
        let mut message = [0; DATAGRAM];
        // An empty datagram ends the measurement.
        loop {
            match server.recv(&mut message)? {
                0 => return Ok(()),
                len => server.send(message.get(..len).unwrap_or_default())?,
            };
        }
    };
    let ask = move |count: u32| -> std::io::Result<()> {
        let mut message = [0x5a; DATAGRAM];
        if count == 0 {
            return client.send(&[]).map(drop);
        }
        (0..count).try_for_each(|_| {
            client.send(&message)?;
            client.recv(&mut message).map(drop)
        })
    };
    let ask = move |count: u32| -> std::io::Result<()> {
        if pair.rules.is_some() && !std::mem::replace(&mut is_stream, true) {
            ask(1)?;
            thread::sleep(UDP_STREAM);
        }
        ask(count)
    };
    let time = exchange(workload, answer, ask);
    time.map_err(&failed)
}

/// Nanoseconds of a message one way, which is half of a round trip: the median over [`PARTS`] parts
/// of the measured round trips. They begin [`SLOW_PATH_HOLD`] after the warm-up. At the end, `ask`
/// is called with 0, which tells the other side to stop.
fn exchange(
    workload: Workload,
    answer: impl FnOnce() -> std::io::Result<()> + Send,
    mut ask: impl FnMut(u32) -> std::io::Result<()>,
) -> std::io::Result<f64> {
    let each = (workload.measured / PARTS).max(1);
    thread::scope(|scope| {
        let answering = scope.spawn(answer);
        let timed = ask(workload.warm_up).and_then(|()| {
            thread::sleep(SLOW_PATH_HOLD);
            let part = |_| {
                let start = Instant::now();
                ask(each)?;
                Ok(start.elapsed())
            };
            (0..PARTS).map(part).collect()
        });
        let _ = ask(0);
        drop(ask);
        let answered = answering.join();
        let mut times: Vec<Duration> = timed?;
        answered.map_err(|_| std::io::Error::other("the other side has panicked"))??;
        times.sort();
        let median = times.get(times.len() / 2).copied().unwrap_or_default();
        Ok(median.as_nanos() as f64 / (2.0 * f64::from(each)))
    })
}

/// Measures connections with one request each, which the client closes. Their number is 1/20 of the
/// round trips.
fn connections(pair: Pair<'_>, workload: Workload) -> Result<f64> {
    let failed = failed("connections of one request");
    let at = SocketAddr::new(pair.to.ip4().into(), 0);
    let listener = pair.to.run(|| TcpListener::bind(at))?.map_err(&failed)?;
    let service = pair.service(listener.local_addr().map_err(&failed)?.port());
    let answer = move || -> std::io::Result<()> {
        let mut message = [0; MESSAGE];
        // A connection without a request ends the measurement.
        loop {
            let (mut server, _) = listener.accept()?;
            server.set_read_timeout(Some(LIMIT))?;
            if server.read(&mut message)? == 0 {
                return Ok(());
            }
            server.write_all(&message)?;
            while server.read(&mut message)? > 0 {}
        }
    };
    let ask = move |count: u32| -> std::io::Result<()> {
        let connect = || TcpStream::connect_timeout(&service, LIMIT);
        if count == 0 {
            return connect().map(drop);
        }
        let mut message = [0x5a; MESSAGE];
        (0..count).try_for_each(|_| {
            let mut client = connect()?;
            client.set_read_timeout(Some(LIMIT))?;
            client.write_all(&message)?;
            client.read_exact(&mut message)
        })
    };
    let workload =
        Workload { warm_up: workload.warm_up / 20, measured: workload.measured / 20, ..workload };
    let one_way = pair.from.run(|| exchange(workload, answer, ask))?.map_err(&failed)?;
    Ok(2.0 * one_way)
}

fn stream(pair: Pair<'_>, workload: Workload) -> Result<Duration> {
    let (client, mut server) = connect(pair)?;
    let total = u64::from(workload.stream_kib) << 10;
    let time = thread::scope(|scope| -> std::io::Result<Duration> {
        let writing = scope.spawn(move || -> std::io::Result<()> {
            let message = vec![0x5a; WRITE];
            let mut client = client;
            // The first half is the warm-up, in which the TCP window grows.
            for _ in 0..2 * total / WRITE as u64 {
                client.write_all(&message)?;
            }
            Ok(())
        });
        let mut buffer = vec![0; WRITE];
        let mut read = |bytes: u64| -> std::io::Result<()> {
            let mut left = bytes;
            while left > 0 {
                let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let len = server.read(buffer.get_mut(..most).unwrap_or_default())?;
                if len == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                left -= len as u64;
            }
            Ok(())
        };
        read(total)?;
        let start = Instant::now();
        read(total)?;
        let time = start.elapsed();
        writing.join().map_err(|_| std::io::Error::other("the writer has panicked"))??;
        Ok(time)
    });
    time.map_err(failed("a stream"))
}
