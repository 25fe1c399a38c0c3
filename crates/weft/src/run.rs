//! `weft run`: the daemon of one host.

use crate::control::{Answer, Control, Request, default_path};
use crate::plan::Plan;
use crate::{Failure, limits, logging, plan, rights};
use anyhow::{Context, anyhow};
use datapath::Datapath;
use datapath::user::{Config, DeviceConfig, PortConfig, UserDatapath};
use netdev::capability::Capability;
use netdev::epoll::{Epoll, Events};
use netdev::signal::{Signal, Signals};
use network::Network;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use switch::Switch;

/// How often it is looked whether the forwarding thread has ended.
const ENDED_INTERVAL: Duration = Duration::from_millis(500);

/// Run the switch of one host until SIGTERM or SIGINT.
///
/// Reads the network file, opens the underlay, makes the TAP devices of this host's ports (in their namespaces where the
/// file says so) and forwards. Devices that do not exist yet are waited for. Everything it made is gone when it ends.
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
    /// The network file
    network: PathBuf,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let network = Network::load(&args.network).map_err(Failure::input)?;
    let host = network.host(&args.host).ok_or_else(|| {
        let names: Vec<_> = network.hosts().iter().map(|host| host.name.as_str()).collect();
        Failure::Input(anyhow!(
            "{} has no host {:?}; it has {}",
            args.network.display(),
            args.host,
            names.join(", ")
        ))
    })?;
    let file_name = args.network.display().to_string();
    let Plan { config, program } =
        plan::plan(&network, host, &file_name).map_err(Failure::Input)?;
    check_rights(&config).map_err(Failure::Input)?;
    logging::init();
    limits::check(&config).map_err(Failure::Input)?;
    // Blocked before any thread starts, so that every thread has them blocked.
    let signals = Signals::take()?;
    let path = args.control.clone().unwrap_or_else(|| default_path(&args.host));
    let control = Control::listen(&path)?;
    let datapath = UserDatapath::start(config)
        .with_context(|| format!("cannot run the switch of {}", args.host))?;
    let datapath = Arc::new(datapath);
    let shared: Arc<dyn Datapath> = Arc::<UserDatapath>::clone(&datapath);
    let switch = Switch::start(shared, program, &switch::Config::default())
        .context("start the threads of the switch")?;
    tracing::info!(host = %args.host, control = %path.display(), "running");
    let asked = Arc::clone(&datapath);
    let served = control.serve(move |Request::Show| match asked.snapshot() {
        Ok(snapshot) => Answer::Ok(Box::new(snapshot)),
        Err(error) => Answer::Error(error.to_string()),
    });
    let waited = served.and_then(|()| wait_for_end(&signals, || datapath.has_ended()));
    drop(switch);
    datapath.join()?;
    waited?;
    tracing::info!("stopped");
    Ok(())
}

/// What lacks here would otherwise show as one port or socket after the other that cannot be opened.
fn check_rights(config: &Config) -> anyhow::Result<()> {
    let enters =
        |port: &PortConfig| matches!(port.device, DeviceConfig::Tap { guest: Some(_), .. });
    let mut needed = vec![Capability::NET_ADMIN, Capability::NET_RAW];
    if config.ports.iter().any(enters) {
        needed.push(Capability::SYS_ADMIN);
    }
    rights::check(&format!("the switch of {}", config.host), &needed)
}

/// Waits until a signal says stop, or the forwarding thread has ended.
fn wait_for_end(signals: &Signals, ended: impl Fn() -> bool) -> Result<(), anyhow::Error> {
    let epoll = Epoll::new()?;
    epoll.add(signals, 0)?;
    let mut events = Events::new();
    while !ended() {
        epoll.wait(&mut events, Some(ENDED_INTERVAL))?;
        match signals.read()? {
            Some(Signal::Terminate | Signal::Interrupt) => return Ok(()),
            Some(Signal::Hangup) => {
                tracing::info!("SIGHUP ignored: restart to read the network file anew");
            }
            None => {}
        }
    }
    Ok(())
}
