//! `weft run`: the daemon of one host.

use crate::control::ovs::{ToolSockets, run_folder};
use crate::control::{ControlSocket, default_path};
use crate::daemon::{
    Daemon, DatapathArg, ForwardingOptions, JoinedHost, PreparedDaemon, RunningDaemon, Shutdown,
    SocketPaths, machine_name,
};
use crate::host_config::{ENTROPY_PORTS, MEGAFLOWS};
use crate::logging::LogFormat;
use crate::metrics::{MetricsAddress, MetricsSocket};
use crate::service_manager::{MainThreadTurns, ServiceManager, State, start_watchdog};
use crate::{Failure, logging, one_line};
use anyhow::{Context, anyhow};
use clap::value_parser;
use datapath::config::Workers;
use netdev::epoll::{Epoll, EpollEvents};
use netdev::signal::{Signal, Signals};
use ovsdb::Remote;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// How often the main thread checks whether forwarding has stopped.
const STATE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Run the switch of one host until SIGTERM or SIGINT.
///
/// Reads the network file, opens the tunnels, creates the TAP devices of this host's ports (in
/// their network namespaces where the file names one) and forwards. Waits for devices that do not
/// exist yet. SIGHUP reads the network file again, like `weft reload`.
///
/// SIGTERM and SIGINT remove everything that the daemon created, unless --keep is given. When the
/// daemon is killed or ends with `weft stop`, the kernel datapath keeps forwarding cached flows.
/// The next daemon adopts these flows and revalidates them; `weft stop --purge` removes them.
///
/// `--ovn --datapath none` is for load tests: the daemon follows the databases, claims ports and
/// confirms `nb_cfg`, but opens no device, tunnel or program.
///
/// Under systemd, the daemon reports its state and serves the watchdog (Type=notify, WatchdogSec=).
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The name of this host in the network file; with --ovn, a name for the control socket
    /// [default: the name of this machine]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Join the OVN deployment that the local database names, in place of ovn-controller and
    /// ovs-vswitchd, instead of reading a network file. REMOTE is the database of Open_vSwitch
    #[arg(long, value_name = "REMOTE", num_args = 0..=1,
          default_missing_value = "unix:/run/openvswitch/db.sock", conflicts_with = "network")]
    ovn: Option<Remote>,
    /// Path of the control socket [default: /run/weft/HOST.sock]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Lets the members of this group open the control socket, and a Unix socket for metrics; they
    /// may view but not change
    #[arg(long, value_name = "GROUP")]
    view_group: Option<String>,
    /// Serve metrics for Prometheus by HTTP at ADDRESS:PORT, or at the Unix socket unix:PATH; TCP
    /// has no access control, so choose an address that only the scraper reaches
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<MetricsAddress>,
    /// The datapath that forwards packets
    #[arg(long, value_enum, default_value_t = DatapathArg::Auto)]
    datapath: DatapathArg,
    /// Number of forwarding threads, 1 to 64; the hash of its inner flow assigns each packet to one
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = value_parser!(u8).range(1..=64))]
    workers: u8,
    /// How long an idle thread busy-polls before it sleeps, 0 to 1000; it does so adaptively, while
    /// packets arrive in that time, and yields its processor. 0 saves processor time and raises
    /// latency
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 100,
          value_parser = value_parser!(u16).range(0..=1000))]
    busy_poll: u16,
    /// Number of outer source ports of VXLAN, Geneve and STT, 1 to 1024, rounded up to a power of
    /// two; NICs and routers spread flows by this port
    #[arg(long, value_name = "N", default_value_t = ENTROPY_PORTS,
          value_parser = value_parser!(u16).range(1..=1024))]
    source_ports: u16,
    /// Maximum number of megaflows, 1000 to 4000000; the kernel datapath allocates memory for all
    /// of them at its start
    #[arg(long, value_name = "N", default_value_t = MEGAFLOWS as u32,
          value_parser = value_parser!(u32).range(1000..=4_000_000))]
    megaflows: u32,
    /// Idle timeout of megaflows, 1 to 3600; it drops to 1 s when the table is nearly full
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
          value_parser = value_parser!(u16).range(1..=3600))]
    idle: u16,
    /// Let SIGTERM and SIGINT act like `weft stop`: the kernel datapath keeps forwarding cached
    /// flows
    #[arg(long)]
    keep: bool,
    /// Mount point of the BPF file system that keeps the state of the kernel datapath; mounted if
    /// it is not
    #[arg(long, value_name = "PATH", default_value = netdev::bpf_fs::DEFAULT_PATH)]
    bpf_fs: PathBuf,
    /// The format of the log. `auto` is `journald` if standard error is the journal of systemd, or
    /// else `text`
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    /// The network file
    #[arg(required_unless_present = "ovn")]
    network: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  weft run --host h1 network.toml
  weft run --host h1 --workers 2 --datapath user network.toml
  WEFT_LOG=debug weft run --host h1 network.toml
  weft run --ovn
  weft run --view-group weft --keep /etc/weft/network.toml
  weft run --log-format json --host h1 network.toml
  weft run --metrics 127.0.0.1:9478 /etc/weft/network.toml

Environment:
  WEFT_LOG  log level (error, warn, info, debug, trace) or filter, such as info,datapath=trace

Exit codes: 0 stopped as requested, 1 forwarding failed, 2 bad usage, an invalid network file or
missing privileges.";

pub fn run(args: &Args) -> Result<(), Failure> {
    logging::init(logging::filter().map_err(Failure::Input)?, args.log_format)?;
    if args.datapath == DatapathArg::None && args.ovn.is_none() {
        return Err(Failure::Input(anyhow!(
            "--datapath none needs --ovn: with a network file there is nothing to follow"
        )));
    }
    let busy_poll = Duration::from_micros(args.busy_poll.into());
    let workers = Workers { count: args.workers.into(), busy_poll };
    let (source_ports, megaflows) = (args.source_ports, args.megaflows as usize);
    let options = ForwardingOptions { workers, source_ports, megaflows, use_kernel: false };
    let manager = Arc::new(ServiceManager::connect().map_err(Failure::Input)?);
    if args.ovn.is_some() {
        netdev::unix::restrict_new_files_to_owner();
    }
    let (host, prepared) = prepare(args, options)?;
    // Threads inherit the signal mask, so signals are blocked before the first thread starts.
    let signals = Signals::take()?;
    let path = control_path(args, &host);
    let control = ControlSocket::listen(&path)?;
    if let Some(group) = &args.view_group {
        control.admit_viewers(group).map_err(Failure::Input)?;
    }
    let metrics = open_metrics(args)?;
    let idle = Duration::from_secs(args.idle.into());
    let tools = args.ovn.as_ref().map(ToolSockets::listen).unwrap_or_default();
    let metrics_path = metrics.as_ref().and_then(MetricsSocket::path);
    let others = tools.paths().chain(metrics_path).collect();
    let bridges = args.ovn.as_ref().map(run_folder);
    let sockets = SocketPaths { control: &path, others, bridges: bridges.as_deref() };
    let RunningDaemon { daemon, ovn } = prepared.start(&args.bpf_fs, sockets, idle)?;
    daemon.detach_forgotten()?;
    messages::log!(STARTED, %host, control = %path.display(), "daemon started");
    let served = serve(&control, (&tools, metrics.as_ref()), &daemon);
    let waited = served.and_then(|()| wait_for_shutdown(&signals, &daemon, &manager));
    manager.tell(State::Stopping);
    let by_signal = if args.keep { Shutdown::Detach } else { Shutdown::Full };
    let shutdown = daemon.requested_shutdown().unwrap_or(by_signal);
    let must_detach = shutdown == Shutdown::Detach && waited.is_ok() && daemon.can_detach();
    if let Some(ovn) = ovn {
        ovn.stop(!must_detach && waited.is_ok());
    }
    if must_detach {
        daemon.detach();
        if daemon.pins_last() {
            messages::log!(
                STOPPED_FORWARDING,
                "daemon stopped; the kernel keeps forwarding cached flows"
            );
        } else {
            messages::log!(
                STOPPED_UNCERTAIN,
                "daemon stopped; cached flows end if their BPF file system does"
            );
        }
        drop((control, tools, metrics));
        logging::flush();
        // Exits without running destructors, which would remove the devices and programs that must
        // stay.
        std::process::exit(0);
    }
    daemon.stop()?;
    if shutdown == Shutdown::Full && waited.is_ok() {
        daemon.forget_connections();
    }
    waited?;
    messages::log!(STOPPED, "daemon stopped");
    Ok(())
}

/// Opens the socket for metrics if `--metrics` is given.
fn open_metrics(args: &Args) -> Result<Option<MetricsSocket>, Failure> {
    let Some(address) = &args.metrics else { return Ok(None) };
    let opened = MetricsSocket::listen(address, args.view_group.as_deref());
    opened.map(Some).map_err(|error| match address {
        // The address may be configured later, so a service manager should restart the daemon.
        MetricsAddress::Tcp(_) => Failure::Runtime(error),
        MetricsAddress::Unix(_) => Failure::Input(error),
    })
}

/// Starts to serve requests and metrics.
fn serve(
    control: &ControlSocket,
    (tools, metrics): (&ToolSockets, Option<&MetricsSocket>),
    daemon: &Arc<Daemon>,
) -> Result<(), anyhow::Error> {
    let server = Arc::clone(daemon);
    control.serve(move |request, client| server.handle_request(request, client))?;
    let server = Arc::clone(daemon);
    tools.serve(move |program, call| {
        let (reply, stop) = server.answer_tool(program, call);
        let server = Arc::clone(&server);
        (reply, stop.map(|mode| move || server.request_shutdown(mode)))
    })?;
    let Some(metrics) = metrics else { return Ok(()) };
    let observed = Arc::clone(daemon);
    metrics.serve(move || observed.observe().ok())?;
    messages::log!(METRICS_SERVED, address = %metrics.address(), "serving metrics");
    Ok(())
}

/// The name of the host, which names the control socket, and the prepared daemon.
fn prepare(args: &Args, options: ForwardingOptions) -> Result<(String, PreparedDaemon), Failure> {
    if let Some(remote) = &args.ovn {
        let joined = JoinedHost::join(remote)?;
        let host = args.host.clone().unwrap_or_else(|| joined.name().to_owned());
        let control = control_path(args, &host);
        return Ok((host, PreparedDaemon::of_ovn(joined, args.datapath, options, &control)?));
    }
    let host = args.host.clone().unwrap_or_else(machine_name);
    let network = args.network.as_deref().unwrap_or(Path::new(""));
    let control = control_path(args, &host);
    let prepared = PreparedDaemon::load(&host, network, args.datapath, options, &control)?;
    Ok((host, prepared))
}

fn control_path(args: &Args, host: &str) -> PathBuf {
    args.control.clone().unwrap_or_else(|| default_path(host))
}

/// Tells the service manager that the daemon is ready. Waits until a signal or a client requests
/// shutdown, or forwarding stops. SIGHUP starts a reload.
fn wait_for_shutdown(
    signals: &Signals,
    daemon: &Arc<Daemon>,
    manager: &Arc<ServiceManager>,
) -> Result<(), anyhow::Error> {
    let reloads = start_reloader(daemon, manager)?;
    let turns: MainThreadTurns = start_watchdog(manager, daemon)?;
    manager.tell(State::Ready);
    let epoll = Epoll::new()?;
    epoll.add(signals, 0)?;
    epoll.add(daemon.shutdown_waker(), 1)?;
    let mut events = EpollEvents::new();
    while !daemon.has_ended() && daemon.requested_shutdown().is_none() {
        epoll.wait(&mut events, Some(STATE_CHECK_INTERVAL))?;
        turns.note();
        match signals.read()? {
            Some(Signal::Terminate | Signal::Interrupt) => return Ok(()),
            // If the queue is full, a reload is pending that has not read the file yet.
            Some(Signal::Hangup) => {
                let _ = reloads.try_send(());
            }
            None => {}
        }
    }
    Ok(())
}

/// Starts a thread that reloads the network file when it receives a message. The main thread must
/// not read the file: a hung file system would delay SIGTERM.
fn start_reloader(
    daemon: &Arc<Daemon>,
    manager: &Arc<ServiceManager>,
) -> Result<SyncSender<()>, anyhow::Error> {
    let (sender, requests) = sync_channel(1);
    let (daemon, manager) = (Arc::clone(daemon), Arc::clone(manager));
    let reload = move || {
        manager.tell(State::Reloading);
        match daemon.reload() {
            Ok(_) | Err(Failure::OutputClosed | Failure::Findings(_)) => {
                manager.tell(State::Ready);
            }
            Err(Failure::Runtime(error) | Failure::Input(error)) => {
                let why = format!("cannot reload after SIGHUP: {}", one_line(&error));
                messages::log!(RELOAD_FAILED, "{why}");
                manager.tell(State::ReloadFailed(&why));
            }
        }
    };
    std::thread::Builder::new()
        .name("reload".to_owned())
        .spawn(move || requests.iter().for_each(|()| reload()))
        .context("cannot start the thread that reloads after SIGHUP")?;
    Ok(sender)
}
