//! `weft port`: attaches interfaces to ports of pools, and detaches them.

use crate::control::replies::{AttachedRow, DeletedPort, PoolsReply};
use crate::control::{DaemonSelector, Request, request};
use crate::table::{Align, Table};
use crate::{Failure, stdio};
use clap::Subcommand;
use std::net::IpAddr;

/// Attach interfaces to ports of pools of a running switch, and detach them.
///
/// A pool (`[[logical_switch.pool]]` of the network file) has ports without interfaces. All hosts
/// know their MAC and IP addresses, so attaching an interface needs no other host and no reload.
/// The daemon stores attached interfaces in the directory of its control socket until the next
/// reboot.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  weft port list --host h1
  weft port add pods veth1 --host h1
  weft port add pods.h1.7 veth1 --host h1 --json | jq -r .addresses[]
  weft port add pods veth1 --address 10.0.1.7 --owner me
  weft port del pods.h1.7 --host h1
  weft port del --owner me --json

Exit codes: 0 success, 1 no daemon replies or forwarding has failed, 2 bad usage, an unknown pool,
no free port, or an interface that is in use.";

#[derive(Subcommand)]
enum Command {
    /// Attach an interface to a port of a pool
    ///
    /// Prints the addresses that the guest must use. The interface stays as it is: set its MTU, and
    /// addresses and MTU of the guest at its other end. It may appear later.
    #[command(after_help = "\
Examples:
  weft port add pods veth1
  weft port add pods.h1.7 veth1 --host h1 --json

Exit codes: 0 attached, or the same owner had attached it already; 1 no daemon replies or forwarding
has failed, 2 bad usage, an unknown pool, no free port, or an interface that is in use.")]
    Add(Add),
    /// Detach the interface of a port, or all interfaces of one owner
    ///
    /// The interface itself stays. Detaching what is not attached succeeds.
    #[command(after_help = "\
Examples:
  weft port del pods.h1.7
  weft port del --owner me --json

Exit codes: 0 nothing of it is attached now, 1 no daemon replies or forwarding has failed, 2 bad
usage.")]
    Del(Del),
    /// List the pools of this host and the attached interfaces
    #[command(after_help = "\
Examples:
  weft port list
  weft port list --host h1 --json | jq '.pools[] | .free'

Exit codes: 0 success, 1 no daemon replies, 2 bad usage.")]
    List(List),
}

#[derive(clap::Args)]
struct Add {
    #[command(flatten)]
    target: DaemonSelector,
    /// The pool, or one of its ports
    #[arg(value_name = "POOL")]
    at: String,
    /// The interface
    device: String,
    /// Take a port with this address; may be repeated
    #[arg(long, value_name = "IP")]
    address: Vec<IpAddr>,
    /// A text that identifies the requester
    #[arg(long, value_name = "TEXT", default_value = "")]
    owner: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Del {
    #[command(flatten)]
    target: DaemonSelector,
    /// The port
    #[arg(required_unless_present = "owner")]
    port: Option<String>,
    /// Detach what was attached with this text
    #[arg(long, value_name = "TEXT")]
    owner: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct List {
    #[command(flatten)]
    target: DaemonSelector,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn port(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Add(args) => add(args),
        Command::Del(args) => del(args),
        Command::List(args) => list(args),
    }
}

fn add(args: &Add) -> Result<(), Failure> {
    let Add { target, at, device, address, owner, json } = args;
    let (at, device, owner) = (at.clone(), device.clone(), owner.clone());
    let request_of = Request::AddPort { at, device, owner, addresses: address.clone() };
    let row: AttachedRow = request(&target.path()?, &request_of)?;
    if *json {
        return stdio::print_json(&row);
    }
    let AttachedRow { device, port, mac, addresses, mtu, .. } = row;
    let addresses = addresses.join(" ");
    stdio::print(&format!("attached {device} to {port}: {mac} {addresses} mtu {mtu}\n"))
}

fn del(args: &Del) -> Result<(), Failure> {
    let Del { target, port, owner, json } = args;
    let request_of = Request::DeletePort { port: port.clone(), owner: owner.clone() };
    let deleted: DeletedPort = request(&target.path()?, &request_of)?;
    if *json {
        return stdio::print_json(&deleted);
    }
    stdio::print(&match deleted.removed.as_slice() {
        [] => "nothing was attached\n".to_owned(),
        removed => format!("detached {}\n", removed.join(", ")),
    })
}

fn list(args: &List) -> Result<(), Failure> {
    let reply: PoolsReply = request(&args.target.path()?, &Request::Pools)?;
    if args.json {
        return stdio::print_json(&reply);
    }
    stdio::print(&describe(&reply))
}

fn describe(reply: &PoolsReply) -> String {
    use Align::{Left, Right};
    let mut pools = Table::new([
        ("POOL", Left),
        ("SWITCH", Left),
        ("MTU", Right),
        ("PORTS", Right),
        ("FREE", Right),
    ]);
    for row in &reply.pools {
        let numbers = [row.mtu.into(), row.ports, row.free].map(|number: usize| number.to_string());
        let [mtu, ports, free] = numbers;
        pools.row([row.name.clone(), row.logical_switch.clone(), mtu, ports, free]);
    }
    let mut attached = Table::new([
        ("PORT", Left),
        ("INTERFACE", Left),
        ("ADDRESSES", Left),
        ("STATE", Left),
        ("OWNER", Left),
    ]);
    for row in &reply.attached {
        let state = match row.pool.is_empty() {
            true => "the network file no longer has the port".to_owned(),
            false => row.state.clone().unwrap_or_default(),
        };
        let (port, device) = (row.port.clone(), row.device.clone());
        attached.row([port, device, row.addresses.join(" "), state, row.owner.clone()]);
    }
    format!("{pools}\n{attached}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::replies::PoolRow;

    #[test]
    fn list_shows_free_ports_and_attached_interfaces() {
        let pool = PoolRow {
            name: "pods".to_owned(),
            logical_switch: "blue".to_owned(),
            mtu: 1442,
            ports: 100,
            free: 98,
        };
        let web = AttachedRow {
            port: "pods.h1.1".to_owned(),
            pool: "pods".to_owned(),
            device: "veth1".to_owned(),
            addresses: vec!["10.0.1.1/16".to_owned()],
            state: Some("up".to_owned()),
            ..AttachedRow::default()
        };
        let orphaned = AttachedRow {
            port: "old.h1.1".to_owned(),
            device: "veth2".to_owned(),
            owner: "me".to_owned(),
            ..AttachedRow::default()
        };
        let host = "h1".to_owned();
        let reply = PoolsReply { host, pools: vec![pool], attached: vec![web, orphaned] };
        let text = "\
POOL  SWITCH   MTU  PORTS  FREE
pods  blue    1442    100    98

PORT       INTERFACE  ADDRESSES    STATE                                    OWNER
pods.h1.1  veth1      10.0.1.1/16  up                                       -
old.h1.1   veth2      -            the network file no longer has the port  me
";
        assert_eq!(describe(&reply), text);
    }
}
