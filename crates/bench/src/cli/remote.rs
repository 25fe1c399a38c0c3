//! `weft-bench serve` and `weft-bench client`: traffic between two real hosts, with the traffic
//! patterns of netperf.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Failure, seconds};
use crate::traffic::load::{self, DEFAULT_PORT, Load, Pattern, Peer, Placement, Server};
use crate::{Error, Stop};

/// How often a run checks its connections.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// How long the load runs before the measurement.
const WARM_UP: Duration = Duration::from_millis(300);

/// Answer the clients of this port until Ctrl-C
#[derive(clap::Args)]
#[command(after_help = "Patterns over UDP and tcp_crr use a further port that the kernel chooses.")]
pub struct Serve {
    /// The address to listen on
    #[arg(long, value_name = "IP", default_value = "::")]
    address: IpAddr,
    /// The TCP port to listen on
    #[arg(long, value_name = "N", default_value_t = DEFAULT_PORT)]
    port: u16,
    /// The processor to which all threads are pinned [default: none]
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
}

/// Load the path to a host that runs `weft bench serve`, and print what it carries
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weft bench client db.example --pattern tcp_rr --size 1024 --connections 64\n  \
    weft bench client 192.0.2.2 --pattern udp_stream --size 18 --connections 8 --rate 100M")]
pub struct Client {
    /// The host that runs `weft bench serve`
    host: String,
    /// Its TCP port
    #[arg(long, value_name = "N", default_value_t = DEFAULT_PORT)]
    port: u16,
    /// tcp_stream, tcp_reverse, tcp_bidirec, tcp_rr, tcp_crr, udp_rr, udp_stream
    #[arg(long, value_name = "NAME", default_value = "tcp_stream")]
    pattern: Pattern,
    /// Bytes of a message [default: 131072; 1 for round trips over TCP, 64 over UDP]
    #[arg(long, value_name = "BYTES")]
    size: Option<usize>,
    /// Concurrent connections, 1 to 640
    #[arg(long, value_name = "N", default_value_t = 1)]
    connections: usize,
    /// A fixed rate over all connections, in bit/s: 500M, 2.5G [default: unlimited]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<f64>,
    /// Seconds of the measurement
    #[arg(long, value_name = "N", default_value_t = 5.0, value_parser = seconds)]
    seconds: f64,
    /// The processor to which all threads are pinned [default: none]
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Parses a rate such as `500M` to bits per second.
fn rate(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, 'k')) => (text.get(..at), 1e3),
        Some((at, 'M')) => (text.get(..at), 1e6),
        Some((at, 'G')) => (text.get(..at), 1e9),
        _ => (Some(text), 1.0),
    };
    match number.and_then(|number| number.parse::<f64>().ok()) {
        Some(number) if number.is_finite() && number > 0.0 => Ok(number * unit),
        _ => Err("expected a rate in bit/s, with an optional k, M or G".to_owned()),
    }
}

pub fn serve(args: &Serve) -> Result<(), Failure> {
    let placement = placement(args.cpu)?;
    let stop = Stop::on_signals()?;
    let server = Server::start(SocketAddr::new(args.address, args.port), placement)?;
    eprintln!("weft-bench serves on {}", server.address());
    loop {
        match stop.sleep(Duration::from_secs(3600)) {
            Ok(()) => {}
            Err(Error::Interrupted) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

pub fn client(args: &Client) -> Result<(), Failure> {
    let load = args.load().map_err(Failure::input)?;
    let placement = placement(args.cpu)?;
    let addresses = resolve(&args.host, args.port)?;
    let stop = Stop::on_signals()?;
    let measured = measure(args, &load, placement, &addresses, &stop)?;
    if args.json {
        println!("{}", measured.json(&load));
    } else {
        measured.print(args.pattern, &load);
    }
    Ok(())
}

impl Client {
    fn load(&self) -> Result<Load, Error> {
        let size = self.size.unwrap_or(match self.pattern {
            Pattern::TcpRr | Pattern::TcpCrr => 1,
            Pattern::UdpRr | Pattern::UdpStream => 64,
            _ => 128 << 10,
        });
        let load = Load::new(self.pattern, size, self.connections)?;
        self.rate.map_or(Ok(load), |rate| load.at_rate(rate))
    }
}

/// The figures of a run, as differences of the counters of both hosts.
struct Measured {
    seconds: f64,
    bytes_per_second: f64,
    transactions_per_second: f64,
    sent_per_second: f64,
    received_per_second: f64,
    lost: u64,
    server_cpu_busy: f64,
    /// Percentiles of the transactions' latency: 50 %, 99 % and 99.9 %.
    percentiles_us: [Option<f64>; 3],
}

fn measure(
    args: &Client,
    load: &Load,
    placement: Placement,
    addresses: &[SocketAddr],
    stop: &Stop,
) -> Result<Measured, Failure> {
    let (server, mut peer) = connect(addresses)?;
    let client = load::Client::start(load, server, placement, stop)?;
    let wait = |duration: Duration| -> Result<(), Error> {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            stop.sleep(CHECK_INTERVAL.min(end.saturating_duration_since(Instant::now())))?;
            client.check()?;
        }
        Ok(())
    };
    wait(WARM_UP)?;
    client.begin_measuring();
    let (start, here, there) = (Instant::now(), client.counters(), peer.counters()?);
    match wait(Duration::from_secs_f64(args.seconds)) {
        // Ctrl-C ends the run early; the figures until then are printed.
        Ok(()) | Err(Error::Interrupted) => {}
        Err(error) => return Err(error.into()),
    }
    let (seconds, now_here, now_there) =
        (start.elapsed().as_secs_f64(), client.counters(), peer.counters()?);
    let times = client.finish()?;
    let per_second = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let received_here = per_second(now_here.received_bytes, here.received_bytes);
    let received_there = per_second(now_there.received_bytes, there.received_bytes);
    let busy = now_there.busy_seconds - there.busy_seconds;
    let all = now_there.cpu_seconds - there.cpu_seconds;
    Ok(Measured {
        seconds,
        bytes_per_second: received_here + received_there,
        transactions_per_second: per_second(now_here.transactions, here.transactions),
        sent_per_second: per_second(now_here.sent_messages, here.sent_messages),
        received_per_second: per_second(now_there.received_messages, there.received_messages),
        lost: now_here.lost - here.lost,
        server_cpu_busy: busy / all.max(f64::MIN_POSITIVE),
        percentiles_us: [0.5, 0.99, 0.999].map(|part| times.percentile_us(part)),
    })
}

impl Measured {
    fn json(&self, load: &Load) -> serde_json::Value {
        json!({
            "load": load.to_string(), "seconds": self.seconds,
            "gbps": self.bytes_per_second * 8.0 / 1e9,
            "transactions_per_second": self.transactions_per_second,
            "latency_us": self.percentiles_us, "lost": self.lost,
            "sent_per_second": self.sent_per_second,
            "received_per_second": self.received_per_second,
            "server_cpu_busy": self.server_cpu_busy,
        })
    }

    fn print(&self, pattern: Pattern, load: &Load) {
        println!("{load}, {:.1} s", self.seconds);
        if pattern.is_transactions() {
            println!("{:.0} transactions/s", self.transactions_per_second);
            if let [Some(p50), Some(p99), Some(p999)] = self.percentiles_us {
                println!("p50 {p50:.0} µs, p99 {p99:.0} µs, p99.9 {p999:.0} µs");
            }
            println!("{} not answered", self.lost);
        } else {
            println!("{:.3} Gb/s", self.bytes_per_second * 8.0 / 1e9);
        }
        if pattern == Pattern::UdpStream {
            let (received, sent) = (self.received_per_second, self.sent_per_second);
            println!("{received:.0} packets/s of {sent:.0} sent");
        }
        println!("processors of the server {:.0} % busy", self.server_cpu_busy * 100.0);
    }
}

/// # Errors
/// This machine does not have the processor `cpu`.
fn placement(cpu: Option<usize>) -> Result<Placement, Failure> {
    if let Some(cpu) = cpu {
        // On a separate thread, so that the calling thread is not pinned.
        let tried = std::thread::spawn(move || netdev::cpu::pin_current_thread(cpu));
        let tried = tried.join().map_err(|_| Failure::work("a thread has panicked"))?;
        tried.map_err(Failure::input)?;
    }
    Ok(Placement { cpu, ..Placement::default() })
}

/// Connects to the first of `addresses` at which a server responds.
fn connect(addresses: &[SocketAddr]) -> Result<(SocketAddr, Peer<'static>), Failure> {
    let mut failure = None;
    for &address in addresses {
        match Peer::connect(address) {
            Ok(peer) => return Ok((address, peer)),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.map_or_else(|| Failure::work("the host has no address"), Failure::from))
}

fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
    let failed = |why: String| Failure::input(format!("cannot resolve {host}: {why}"));
    let found = (host, port).to_socket_addrs().map_err(|error| failed(error.to_string()))?;
    let found: Vec<_> = found.collect();
    if found.is_empty() { Err(failed("it has no address".to_owned())) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_read_with_its_unit() {
        assert_eq!((rate("500M"), rate("2.5G"), rate("1000")), (Ok(5e8), Ok(2.5e9), Ok(1000.0)));
        for text in ["", "M", "-1M", "nan", "1T"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }
}
