//! The part of a trial that only weft has: pings via the logical router, connections that an ACL
//! rejects, and the packet counters of the ACL entries.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use crate::control::{ReplyForm, ask};
use crate::lab::policy::{ALLOW_MATCH, GATEWAY4, GATEWAY6, REJECT_MATCH, REJECTED_PORT, SWITCHES};
use crate::lab::{Attachment, Guest, Lab, RoutedGuest};
use crate::traffic::ping::Pinger;
use crate::{Error, Result, Stop};

/// How long the first ping of a routed pair of guests may take. The daemons are already running,
/// but a busy machine may take seconds.
pub(super) const PAIR_LIMIT: Duration = Duration::from_secs(10);
/// Pings of each routed pair.
pub(super) const PINGS_OF_A_PAIR: u32 = 3;
/// An upper bound for the payload bytes of one packet.
const LONGEST_PACKET: u64 = 65_536;
/// Connections that the ACL must reject.
const TRIES: u32 = 3;
/// How long a connection may take to be established or rejected.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a packet may take to appear in the counter of its ACL entry.
const COUNT_LIMIT: Duration = Duration::from_secs(3);
/// The logical stage of ACLs toward a port.
const STAGE: &str = "ls_out_acl";

/// The observations of weft's router and ACLs in a trial.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct PolicyReport {
    /// Pings via the router, each to a guest of the other host.
    pub routed: Vec<RoutedPings>,
    /// Connections that the ACL of the second switch rejected.
    pub refused: Refusals,
    /// The ACL entry that allowed the measured traffic.
    pub let_in: AclEntry,
}

/// Pings via the router.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct RoutedPings {
    /// The name of the sender.
    pub from: String,
    /// The name of the guest in the other switch.
    pub to: String,
    /// The router's address in the sender's switch.
    pub gateway: IpAddr,
    /// Requests sent.
    pub sent: u32,
    /// Replies received.
    pub received: u32,
}

/// Connections to a port that an ACL rejects.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Refusals {
    /// The name of the guest that listens there.
    pub to: String,
    /// The TCP port.
    pub port: u16,
    /// Connections tried.
    pub tried: u32,
    /// Connections that were rejected before they reached the guest.
    pub refused: u32,
    /// The ACL entry that rejected them.
    pub entry: AclEntry,
}

/// An entry of an ACL.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct AclEntry {
    /// The match expression of the entry.
    pub condition: String,
    /// Packets that matched the entry, counted by the daemon of the second host; a super-packet is
    /// one.
    pub packets: u64,
}

impl AclEntry {
    fn new(condition: &str) -> Self {
        Self { condition: condition.to_owned(), packets: 0 }
    }
}

/// Sends packets that the router must forward, and connections that the ACL must reject, if
/// `attachment` has a router and ACLs. [`count`] reads the counters of the ACLs later.
///
/// # Errors
/// The router or the ACLs do not behave as configured, or [`Error::Interrupted`].
pub(super) fn exercise(
    lab: &Lab<'_>,
    attachment: &Attachment,
    stop: &Stop,
) -> Result<Option<PolicyReport>> {
    let Some(setup) = attachment.routed_setup() else { return Ok(None) };
    setup.add_routes(lab, stop)?;
    let [first, second] = setup.guests() else { return Ok(None) };
    let mut routed = Vec::new();
    for (from, to) in [(lab.guest(0, 0), second), (lab.guest(1, 0), first)] {
        for (address, gateway) in
            [(to.ip4().into(), GATEWAY4.into()), (to.ip6().into(), GATEWAY6.into())]
        {
            routed.push(ping(from, to, address, gateway, stop)?);
        }
    }
    let refused = refuse(lab.guest(0, 0), second)?;
    Ok(Some(PolicyReport { routed, refused, let_in: AclEntry::new(ALLOW_MATCH) }))
}

fn ping(
    from: &Guest,
    to: &RoutedGuest,
    address: IpAddr,
    gateway: IpAddr,
    stop: &Stop,
) -> Result<RoutedPings> {
    let mut pinger = from.run(|| Pinger::open(address))??;
    pinger.wait_for_answer(PAIR_LIMIT, stop)?;
    let report = pinger.run(PINGS_OF_A_PAIR, stop)?;
    let (sent, received) = (report.sent, report.received);
    let (from, to) = (from.name(), to.name());
    if !report.is_complete() {
        return Err(Error::Other(format!(
            "only {received} of {sent} pings from {from} to {to} through the router {gateway} were \
             answered"
        )));
    }
    Ok(RoutedPings { from, to, gateway, sent, received })
}

/// Connects to an open port of `to`, and to one that the ACL rejects.
fn refuse(from: &Guest, to: &RoutedGuest) -> Result<Refusals> {
    let name = to.name();
    let listen = |port| -> Result<(TcpListener, SocketAddr)> {
        let failed = |e| Error::io(format!("listen at TCP port {port} of {name}"))(e);
        let listener = to.run(|| TcpListener::bind((to.ip4(), port)))?.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok((listener, address))
    };
    let connect = |address: SocketAddr| {
        from.run(move || TcpStream::connect_timeout(&address, CONNECT_TIMEOUT))
    };
    // Shows that the ACL, and not a missing path, rejects the connections to the second port.
    let (_open, address) = listen(0)?;
    connect(address)?.map_err(Error::io(format!("connect from {} to {address}", from.name())))?;
    let (closed, address) = listen(REJECTED_PORT)?;
    for _ in 0..TRIES {
        match connect(address)? {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            other => {
                let what =
                    other.map_or_else(|error| error.to_string(), |_| "established".to_owned());
                let text = format!(
                    "an ACL rejects connections to {address}, but one ended otherwise: {what}"
                );
                return Err(Error::Other(text));
            }
        }
    }
    if closed.accept().is_ok() {
        return Err(Error::Other(format!(
            "a connection to {address} passed the ACL that rejects it"
        )));
    }
    let (port, entry) = (REJECTED_PORT, AclEntry::new(REJECT_MATCH));
    Ok(Refusals { to: name, port, tried: TRIES, refused: TRIES, entry })
}

/// Reads the ACL counters of the second host, where both switches have guests. `bytes` is the
/// payload that the trial transferred.
///
/// # Errors
/// A counter is lower than the rejected connections, or than the packets that the payload needs.
pub(super) fn count(
    report: &mut PolicyReport,
    bytes: u64,
    attachment: &Attachment,
    stop: &Stop,
) -> Result<()> {
    let [near, far] = SWITCHES;
    let refused = &mut report.refused;
    refused.entry.packets = counted(attachment, far, REJECT_MATCH, refused.refused.into(), stop)?;
    let least = bytes.div_ceil(LONGEST_PACKET);
    report.let_in.packets = counted(attachment, near, ALLOW_MATCH, least, stop)?;
    Ok(())
}

/// Waits until the ACL entry `condition` of a switch has matched `least` packets.
fn counted(
    attachment: &Attachment,
    switch: &str,
    condition: &str,
    least: u64,
    stop: &Stop,
) -> Result<u64> {
    let control = attachment
        .control(1)
        .ok_or_else(|| Error::Other("the second host has no daemon".into()))?;
    let request = json!({ "command": "program", "datapath": switch });
    let what = format!("{least} packet(s) counted under the entry `{condition}` of {switch}");
    stop.wait_for(&what, COUNT_LIMIT, || {
        let mut packets = 0;
        ask(control, &request, ReplyForm::Rows, |row: &Value| {
            if row["stage"] == STAGE && row["match"] == condition {
                packets = row["packets"].as_u64().unwrap_or(0);
            }
        })?;
        Ok(Some(packets).filter(|&packets| packets >= least))
    })
}
