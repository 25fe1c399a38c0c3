//! `weft bench serve` and `weft bench client`: traffic between two real hosts, with netperf's meanings.

use super::seconds;
use crate::Failure;
use ::bench::traffic::load::{self, DEFAULT_PORT, Load, Pattern, Peer, Placement, Server};
use ::bench::{Error, Stop};
use clap::Args;
use serde_json::json;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

/// How often connections are looked at during a run.
const LOOK: Duration = Duration::from_millis(50);

/// Answer the clients of this port until Ctrl-C
#[derive(Args)]
#[command(
    after_help = "Round trips over UDP, packets and new connections use a port of the kernel's choice besides."
)]
pub struct Serve {
    /// The address to listen at
    #[arg(long, value_name = "IP", default_value = "::")]
    address: IpAddr,
    /// The TCP port to listen at
    #[arg(long, value_name = "N", default_value_t = DEFAULT_PORT)]
    port: u16,
    /// The processor on which everything is done [default: any]
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
}

/// Load the path to a host on which weft bench serve runs, and say what it carries
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weft bench client db.example --pattern tcp_rr --size 1024 --connections 64\n  \
                  weft bench client 192.0.2.2 --pattern udp_stream --size 18 --connections 8 --rate 100M"
)]
pub struct Client {
    /// The host on which weft bench serve runs
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
    /// Connections at once, 1 to 640
    #[arg(long, value_name = "N", default_value_t = 1)]
    connections: usize,
    /// A fixed rate in all, in bit/s: 500M, 2.5G [default: as fast as it goes]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<f64>,
    /// Seconds of the measurement
    #[arg(long, value_name = "N", default_value_t = 5.0, value_parser = seconds)]
    seconds: f64,
    /// The processor on which everything is done [default: any]
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `500M` as bits a second.
fn rate(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, 'k')) => (text.get(..at), 1e3),
        Some((at, 'M')) => (text.get(..at), 1e6),
        Some((at, 'G')) => (text.get(..at), 1e9),
        _ => (Some(text), 1.0),
    };
    match number.and_then(|number| number.parse::<f64>().ok()) {
        Some(number) if number.is_finite() && number > 0.0 => Ok(number * unit),
        _ => Err("a rate in bit/s, with k, M or G behind it".to_owned()),
    }
}

pub fn serve(args: &Serve) -> Result<(), Failure> {
    let placement = placement(args.cpu)?;
    let stop = Stop::on_signals()?;
    let server = Server::start(SocketAddr::new(args.address, args.port), placement)?;
    eprintln!("weft bench serves at {}", server.address());
    loop {
        match stop.sleep(Duration::from_secs(3600)) {
            Ok(()) => {}
            Err(Error::Interrupted) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

pub fn client(args: &Client) -> Result<(), Failure> {
    let size = args.size.unwrap_or(match args.pattern {
        Pattern::TcpRr | Pattern::TcpCrr => 1,
        Pattern::UdpRr | Pattern::UdpStream => 64,
        _ => 128 << 10,
    });
    let load = Load::new(args.pattern, size, args.connections);
    let load = load.and_then(|load| args.rate.map_or(Ok(load), |rate| load.at_rate(rate)));
    let load = load.map_err(Failure::input)?;
    let placement = placement(args.cpu)?;
    let addresses = resolve(&args.host, args.port)?;
    let stop = Stop::on_signals()?;
    let (server, mut peer) = connect(&addresses)?;
    let client = load::Client::start(&load, server, placement, &stop)?;
    let wait = |duration: Duration| -> Result<(), Error> {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            stop.sleep(LOOK.min(end.saturating_duration_since(Instant::now())))?;
            client.check()?;
        }
        Ok(())
    };
    wait(Duration::from_millis(300))?;
    client.begin_measuring();
    let (start, here, there) = (Instant::now(), client.counters(), peer.counters()?);
    // What was measured before Ctrl-C counts.
    match wait(Duration::from_secs_f64(args.seconds)) {
        Ok(()) | Err(Error::Interrupted) => {}
        Err(error) => return Err(error.into()),
    }
    let (seconds, now_here, now_there) =
        (start.elapsed().as_secs_f64(), client.counters(), peer.counters()?);
    let times = client.finish()?;
    let per_second = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let bytes = per_second(now_here.received_bytes, here.received_bytes)
        + per_second(now_there.received_bytes, there.received_bytes);
    let transactions = per_second(now_here.transactions, here.transactions);
    let sent = per_second(now_here.sent_messages, here.sent_messages);
    let received = per_second(now_there.received_messages, there.received_messages);
    let busy = (now_there.busy_seconds - there.busy_seconds)
        / (now_there.cpu_seconds - there.cpu_seconds).max(f64::MIN_POSITIVE);
    let percentiles = [0.5, 0.99, 0.999].map(|part| times.percentile_us(part));
    if args.json {
        println!(
            "{}",
            json!({
                "load": load.to_string(), "seconds": seconds, "gbps": bytes * 8.0 / 1e9,
                "transactions_per_second": transactions, "latency_us": percentiles,
                "lost": now_here.lost - here.lost,
                "sent_per_second": sent, "received_per_second": received, "server_cpu_busy": busy,
            })
        );
        return Ok(());
    }
    println!("{load}, {seconds:.1} s");
    if args.pattern.is_transactions() {
        println!("{transactions:.0} transactions/s");
        if let [Some(p50), Some(p99), Some(p999)] = percentiles {
            println!("p50 {p50:.0} µs, p99 {p99:.0} µs, p99.9 {p999:.0} µs");
        }
        println!("{} not answered", now_here.lost - here.lost);
    } else {
        println!("{:.3} Gb/s", bytes * 8.0 / 1e9);
    }
    if args.pattern == Pattern::UdpStream {
        println!("{received:.0} packets/s of {sent:.0} sent");
    }
    println!("processors of the server {:.0} % busy", busy * 100.0);
    Ok(())
}

/// # Errors
/// This machine has no such processor.
fn placement(cpu: Option<usize>) -> Result<Placement, Failure> {
    if let Some(cpu) = cpu {
        // On a thread of its own: this one stays where it is.
        let tried = std::thread::spawn(move || netdev::cpu::pin_current_thread(cpu));
        let tried = tried.join().map_err(|_| anyhow::anyhow!("a thread has panicked"))?;
        tried.map_err(Failure::input)?;
    }
    Ok(Placement { cpu, ..Placement::default() })
}

/// The first of `addresses` at which weft bench serve answers.
fn connect(addresses: &[SocketAddr]) -> Result<(SocketAddr, Peer<'static>), Failure> {
    let mut failure = None;
    for &address in addresses {
        match Peer::connect(address) {
            Ok(peer) => return Ok((address, peer)),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.map_or_else(|| anyhow::anyhow!("no address").into(), Failure::from))
}

fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
    let what = |why: String| Failure::input(anyhow::anyhow!("{host}: {why}"));
    let found = (host, port).to_socket_addrs().map_err(|error| what(error.to_string()))?;
    let found: Vec<_> = found.collect();
    if found.is_empty() { Err(what("has no address".to_owned())) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units() {
        assert_eq!((rate("500M"), rate("2.5G"), rate("1000")), (Ok(5e8), Ok(2.5e9), Ok(1000.0)));
        for text in ["", "M", "-1M", "nan", "1T"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }
}
