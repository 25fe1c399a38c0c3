//! `weft run`: the daemon of one host.

use crate::control::{Control, default_path};
use crate::daemon::{Choice, Daemon, End, Means, Ready};
use crate::plan::MEGAFLOWS;
use crate::{Failure, logging, sentence};
use datapath::config::Workers;
use netdev::epoll::{Epoll, Events};
use netdev::signal::{Signal, Signals};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked whether the forwarding thread has ended.
const ENDED_INTERVAL: Duration = Duration::from_millis(500);

/// Run the switch of one host until SIGTERM or SIGINT.
///
/// Reads the network file, opens the underlay, makes the TAP devices of this host's ports (in their namespaces where the
/// file says so) and forwards. Devices that do not exist yet are waited for. SIGHUP reads the file again, as `weft reload` does.
/// Everything it made is gone when it ends by SIGTERM or SIGINT, unless --keep is given. In the kernel's datapath, what is cached goes on
/// forwarding when the daemon is killed or ended with `weft stop`: the next one takes it over, `weft stop --purge` removes it.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  weft run --host h1 network.toml\n\nWEFT_LOG=debug shows more messages."
)]
pub struct Args {
    /// The name of this host in the network file
    #[arg(long)]
    host: String,
    /// The control socket [default: /run/weft/HOST.sock]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Who forwards: the kernel's datapath does so in BPF programs, and what these cannot do in the threads of the user's
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    datapath: Choice,
    /// Threads that forward, 1 to 64; each packet is forwarded by one of them, chosen by its inner flow
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    workers: u8,
    /// How long a thread with nothing to do looks again before it sleeps, 0 to 1000; it does so only while packets do come in
    /// that time, and lets others on its processor go first. 0 saves processor time, and a round trip takes longer
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 100, value_parser = clap::value_parser!(u16).range(0..=1000))]
    busy_poll: u16,
    /// How many outer source ports tell the flows of guests apart in VXLAN, Geneve and STT, 1 to 1024, rounded up to a power of two;
    /// 1 leaves cards and routers on the way nothing to spread them by
    #[arg(long, value_name = "N", default_value_t = crate::plan::ENTROPY_PORTS, value_parser = clap::value_parser!(u16).range(1..=1024))]
    source_ports: u16,
    /// Megaflows at most, 1000 to 4000000. The kernel's datapath takes the memory for all of them when it starts
    #[arg(long, value_name = "N", default_value_t = MEGAFLOWS as u32, value_parser = clap::value_parser!(u32).range(1000..=4_000_000))]
    megaflows: u32,
    /// Seconds without a packet after which a megaflow is deleted, 1 to 3600; after 1 s when nearly all that there may be are there
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=3600))]
    idle: u16,
    /// SIGTERM and SIGINT end the daemon as `weft stop` does: what is cached in the kernel goes on forwarding
    #[arg(long)]
    keep: bool,
    /// The BPF file system, in which the kernel's datapath is pinned so that it outlives the daemon; mounted if it is not there
    #[arg(long, value_name = "PATH", default_value = netdev::bpf_fs::USUAL)]
    bpf_fs: PathBuf,
    /// The network file
    network: PathBuf,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    logging::init();
    let busy_poll = Duration::from_micros(args.busy_poll.into());
    let workers = Workers { count: args.workers.into(), busy_poll };
    let (source_ports, megaflows) = (args.source_ports, args.megaflows as usize);
    let means = Means { workers, source_ports, megaflows, by_kernel: false };
    let ready = Ready::load(&args.host, &args.network, args.datapath, means)?;
    // Blocked before any thread starts, so that every thread has them blocked.
    let signals = Signals::take()?;
    let path = args.control.clone().unwrap_or_else(|| default_path(&args.host));
    let control = Control::listen(&path)?;
    let idle = Duration::from_secs(args.idle.into());
    let daemon = Arc::new(ready.start(&args.bpf_fs, idle)?);
    tracing::info!(host = %args.host, control = %path.display(), "running");
    let asked = Arc::clone(&daemon);
    let served = control.serve(move |request, client| asked.answer(request, client));
    let waited = served.and_then(|()| wait_for_end(&signals, &daemon));
    let by_signal = if args.keep { End::Leaving } else { End::Whole };
    let end = daemon.asked_to_end().unwrap_or(by_signal);
    if end == End::Leaving && waited.is_ok() && daemon.can_leave() {
        daemon.leave();
        tracing::info!("stopped; what is cached in the kernel goes on forwarding");
        drop(control);
        // What would be done for an orderly end is what is not to be done.
        std::process::exit(0);
    }
    daemon.stop()?;
    waited?;
    tracing::info!("stopped");
    Ok(())
}

/// Waits until a signal or a client says stop, or the daemon has ended.
fn wait_for_end(signals: &Signals, daemon: &Daemon) -> Result<(), anyhow::Error> {
    let epoll = Epoll::new()?;
    epoll.add(signals, 0)?;
    epoll.add(daemon.end_waker(), 1)?;
    let mut events = Events::new();
    while !daemon.has_ended() && daemon.asked_to_end().is_none() {
        epoll.wait(&mut events, Some(ENDED_INTERVAL))?;
        match signals.read()? {
            Some(Signal::Terminate | Signal::Interrupt) => return Ok(()),
            Some(Signal::Hangup) => match daemon.reload() {
                Ok(_) | Err(Failure::Unread | Failure::Found(_)) => {}
                Err(Failure::Work(error) | Failure::Input(error)) => {
                    tracing::error!("SIGHUP: {}", sentence(&error));
                }
            },
            None => {}
        }
    }
    Ok(())
}
