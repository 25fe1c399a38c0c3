//! Answers the commands that `ovs-appctl` and `ovn-appctl` send to ovs-vswitchd and ovn-controller.

use super::connections::End;
use super::queries::DUMP_BATCH;
use super::{Daemon, Shutdown};
use crate::control::ovs::{Call, Program, Reply};
use conntrack::{Connection, Tuple, Zone};
use datapath::DumpCursor;
use flow::ShowActions;
use pipeline::ZoneUser;
use std::fmt::Write as _;
use std::sync::PoisonError;

/// The longest reply, in bytes.
const MAX_TEXT: usize = 16 << 20;

/// The commands of each program, for `list-commands`.
const VSWITCHD: &str = "\
dpctl/del-flows          [DP]
dpctl/dump-conntrack     [DP] [zone=ZONE]
dpctl/dump-flows         [DP]
dpctl/flush-conntrack    [DP] [zone=ZONE] [CT-ORIG-TUPLE [CT-REPLY-TUPLE]]
exit                     [--cleanup]
list-commands
version
";
const CONTROLLER: &str = "\
connection-status
ct-zone-list
debug/dump-local-template-vars
exit                     [--restart]
list-commands
version
vlog/close
vlog/reopen
";

impl Daemon {
    /// Answers a call. For `exit`, also returns how to stop after the reply is sent.
    pub fn answer_tool(&self, program: Program, call: &Call) -> (Reply, Option<Shutdown>) {
        let arguments: Vec<&str> = call.params.iter().map(String::as_str).collect();
        let reply = match (program, call.method.as_str(), arguments.as_slice()) {
            (_, "exit", _) => {
                let stop = shutdown_kind(program, &arguments);
                return match stop {
                    Some(mode) => (Ok(String::new()), Some(mode)),
                    None => (Err(unsupported("exit", &arguments)), None),
                };
            }
            (_, "version", []) => {
                Ok(format!("{} (weft) {}\n", program.name(), env!("CARGO_PKG_VERSION")))
            }
            (Program::Vswitchd, "list-commands", []) => Ok(VSWITCHD.to_owned()),
            (Program::Controller, "list-commands", []) => Ok(CONTROLLER.to_owned()),
            (Program::Vswitchd, "dpctl/dump-conntrack", _) => {
                zone_of(&call.method, &arguments).and_then(|zone| self.dump_connections(zone))
            }
            (Program::Vswitchd, "dpctl/flush-conntrack", _) => flushed(&call.method, &arguments)
                .map(|(zone, tuples)| {
                    self.flush_tuples(zone, |original, reply| {
                        tuples[0].accepts(original) && tuples[1].accepts(reply)
                    });
                    String::new()
                }),
            (Program::Vswitchd, "dpctl/dump-flows", [] | [_])
                if arguments.iter().all(|datapath| is_datapath(datapath)) =>
            {
                self.dump_megaflows()
            }
            (Program::Vswitchd, "dpctl/del-flows", [] | [_])
                if arguments.iter().all(|datapath| is_datapath(datapath)) =>
            {
                let deleted = self.switch.delete_megaflows();
                deleted.map(|()| String::new()).map_err(|error| error.to_string())
            }
            // Nothing to do: weft logs to standard error, not to a file.
            (Program::Controller, "vlog/close" | "vlog/reopen", []) => Ok(String::new()),
            (Program::Controller, "debug/dump-local-template-vars", []) => {
                Ok(self.list_templates())
            }
            (Program::Controller, "connection-status", []) => Ok(self.southbound_status()),
            (Program::Controller, "ct-zone-list", []) => Ok(self.list_zones()),
            (_, method, _) => Err(unsupported(method, &arguments)),
        };
        (reply, None)
    }

    /// Stops the daemon. If there are several requests, the first one sets the mode.
    pub fn request_shutdown(&self, mode: Shutdown) {
        let _ = self.shutdown.mode.set(mode);
        self.shutdown.waker.wake();
    }

    /// One line for each connection, in the format of Open vSwitch.
    fn dump_connections(&self, zone: Option<Zone>) -> Reply {
        let mut text = String::new();
        self.connections_in(zone, |connection, protocol, state| {
            write_connection(&mut text, connection, protocol, state);
            check_len(&text, "name a zone, or use `weft ct`")
        })?;
        Ok(text)
    }

    /// One line for each megaflow: its match and actions in the syntax of `weft flows`.
    fn dump_megaflows(&self) -> Reply {
        let mut text = String::new();
        let mut next = Some(DumpCursor::default());
        while let Some(from) = next.take() {
            let (rows, then) =
                self.switch.flows(from, DUMP_BATCH).map_err(|error| error.to_string())?;
            for row in rows {
                let (packets, bytes) = (row.usage.packets, row.usage.bytes);
                let used = match packets {
                    0 => "never".to_owned(),
                    _ => format!("{:.3}s", row.idle.as_secs_f64()),
                };
                let (condition, actions) =
                    (&row.megaflow.condition, ShowActions(&row.megaflow.actions));
                // Writing to a String cannot fail.
                let _ = writeln!(
                    text,
                    "{condition}, packets:{packets}, bytes:{bytes}, used:{used}, actions:{actions}"
                );
                check_len(&text, "use `weft flows`")?;
            }
            next = then;
        }
        Ok(text)
    }

    fn southbound_status(&self) -> String {
        let status = self.ovn.lock().unwrap_or_else(PoisonError::into_inner);
        let is_connected = status.progress.is_southbound_connected;
        if is_connected { "connected\n" } else { "not connected\n" }.to_owned()
    }

    /// The values of this host's template variables.
    fn list_templates(&self) -> String {
        let status = self.ovn.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = status.templates.iter();
        let lines = lines.map(|(name, value)| format!("name: '{name}' value: '{value}'\n"));
        ["Local template vars:\n".to_owned()].into_iter().chain(lines).collect()
    }

    /// The users of zones: the names of ports, and the names of routers and switches with the
    /// purpose of the zone.
    fn list_zones(&self) -> String {
        let program = self.switch.program();
        let lines = program.zones().iter().map(|(user, zone)| match user {
            ZoneUser::Port { port, .. } => format!("{port} {zone}\n"),
            ZoneUser::Dnat(router) => format!("{router}_dnat {zone}\n"),
            ZoneUser::Snat(router) => format!("{router}_snat {zone}\n"),
            ZoneUser::Hairpin(switch) => format!("{switch}_hairpin {zone}\n"),
            ZoneUser::Bridge { datapath, zone: own } => format!("{datapath}_{own} {zone}\n"),
        });
        lines.collect()
    }
}

/// Maps the arguments of `exit` as the original programs do. ovs-vswitchd keeps the kernel's flows
/// unless `--cleanup` is given. ovn-controller removes its host from the southbound database unless
/// `--restart` is given.
fn shutdown_kind(program: Program, arguments: &[&str]) -> Option<Shutdown> {
    match (program, arguments) {
        (Program::Vswitchd, []) | (Program::Controller, ["--restart"]) => Some(Shutdown::Detach),
        (Program::Vswitchd, ["--cleanup"]) | (Program::Controller, []) => Some(Shutdown::Full),
        _ => None,
    }
}

fn unsupported(method: &str, arguments: &[&str]) -> String {
    let call = [&[method], arguments].concat().join(" ");
    format!("weft does not support `{call}`; list-commands lists what it supports")
}

/// A datapath, such as `system@ovs-system`. weft has only one datapath, so any name is accepted.
fn is_datapath(argument: &str) -> bool {
    !argument.starts_with('-') && !argument.contains(['=', ','])
}

/// The zone of the arguments `[DP] [zone=ZONE]`.
fn zone_of(method: &str, arguments: &[&str]) -> Result<Option<Zone>, String> {
    let rest = match arguments {
        [datapath, rest @ ..] if is_datapath(datapath) => rest,
        all => all,
    };
    let zone = match rest {
        [] => return Ok(None),
        [zone] => zone.strip_prefix("zone=").and_then(|zone| zone.parse().ok()),
        _ => None,
    };
    zone.map(|zone| Some(Zone(zone))).ok_or_else(|| unsupported(method, arguments))
}

/// The values that a tuple of `dpctl/flush-conntrack` must have.
#[derive(Default)]
struct TupleFilter {
    /// Source and destination.
    ends: [End; 2],
    protocol: Option<u8>,
    /// Type, code and identifier.
    icmp: [Option<u16>; 3],
}

impl TupleFilter {
    /// Parses `ct_nw_src=10.0.0.1,ct_nw_proto=17,...`. An empty text accepts all tuples.
    fn parse(text: &str) -> Option<Self> {
        let mut filter = Self::default();
        for part in text.split([',', ' ']).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=')?;
            match key {
                "ct_nw_src" | "ct_ipv6_src" => filter.ends[0].ip = Some(value.parse().ok()?),
                "ct_nw_dst" | "ct_ipv6_dst" => filter.ends[1].ip = Some(value.parse().ok()?),
                "ct_nw_proto" => filter.protocol = Some(value.parse().ok()?),
                "ct_tp_src" => filter.ends[0].port = Some(value.parse().ok()?),
                "ct_tp_dst" => filter.ends[1].port = Some(value.parse().ok()?),
                "icmp_type" => filter.icmp[0] = Some(value.parse().ok()?),
                "icmp_code" => filter.icmp[1] = Some(value.parse().ok()?),
                "icmp_id" => filter.icmp[2] = Some(value.parse().ok()?),
                _ => return None,
            }
        }
        Some(filter)
    }

    fn accepts(&self, tuple: &Tuple) -> bool {
        let icmp = tuple.icmp_fields();
        let values = [
            (self.icmp[0], icmp.map(|(kind, ..)| kind.into())),
            (self.icmp[1], icmp.map(|(_, code, _)| code.into())),
            (self.icmp[2], icmp.map(|(.., id)| id)),
        ];
        self.ends.iter().zip(End::of(tuple)).all(|(end, own)| end.accepts(own))
            && self.protocol.is_none_or(|protocol| protocol == tuple.protocol().0)
            && values.into_iter().all(|(expected, is)| expected.is_none() || expected == is)
    }
}

/// The arguments `[DP] [zone=ZONE] [CT-ORIG-TUPLE [CT-REPLY-TUPLE]]`.
fn flushed(method: &str, arguments: &[&str]) -> Result<(Option<Zone>, [TupleFilter; 2]), String> {
    let is_tuple = |text: &&&str| text.is_empty() || text.starts_with("ct_");
    let tuples = arguments.iter().rev().take(2).take_while(is_tuple).count();
    let (others, tuples) = arguments.split_at(arguments.len() - tuples);
    let zone = zone_of(method, others)?;
    let mut filters = tuples.iter().map(|text| TupleFilter::parse(text));
    let mut next = || filters.next().unwrap_or_else(|| Some(TupleFilter::default()));
    match [next(), next()] {
        [Some(original), Some(reply)] => Ok((zone, [original, reply])),
        _ => Err(unsupported(method, arguments)),
    }
}

fn check_len(text: &str, remedy: &str) -> Result<(), String> {
    if text.len() > MAX_TEXT {
        return Err(format!("the answer is longer than {} MiB: {remedy}", MAX_TEXT >> 20));
    }
    Ok(())
}

fn write_connection(text: &mut String, connection: &Connection, protocol: &str, state: &str) {
    let Connection { original, reply, zone, mark, label, .. } = connection;
    let is_tcp = protocol == "tcp";
    let protocol = if protocol == "icmp6" { "icmpv6" } else { protocol };
    // Writing to a String cannot fail.
    let _ = write!(text, "{protocol},orig=({}),reply=({})", ends(original), ends(reply));
    if zone.0 != 0 {
        let _ = write!(text, ",zone={}", zone.0);
    }
    if *mark != 0 {
        let _ = write!(text, ",mark={mark}");
    }
    if *label != 0 {
        let _ = write!(text, ",labels={label:#x}");
    }
    if is_tcp {
        let _ = write!(text, ",protoinfo=(state={state})");
    }
    text.push('\n');
}

fn ends(tuple: &Tuple) -> String {
    let mut text = format!("src={},dst={}", tuple.src(), tuple.dst());
    if let Some((kind, code, id)) = tuple.icmp_fields() {
        let _ = write!(text, ",id={id},type={kind},code={code}");
    } else {
        // Open vSwitch prints ports for every protocol: 0 if it has none.
        let (src, dst) = tuple.ports();
        let _ = write!(text, ",sport={src},dport={dst}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn zone_follows_an_optional_datapath() {
        for (arguments, zone) in [
            (&[][..], Ok(None)),
            (&["system@ovs-system"], Ok(None)),
            (&["zone=7"], Ok(Some(Zone(7)))),
            (&["netdev@ovs-netdev", "zone=65535"], Ok(Some(Zone(65535)))),
            (&["zone=65536"], Err(())),
            (&["zone=7", "zone=8"], Err(())),
            (&["-m"], Err(())),
            (&["a", "b"], Err(())),
            // Only `dpctl/flush-conntrack` accepts a tuple.
            (&["ct_nw_src=10.0.0.1,ct_nw_proto=6"], Err(())),
        ] {
            let found = zone_of("dpctl/dump-conntrack", arguments);
            assert_eq!(found.clone().map_err(drop), zone, "{arguments:?}");
            if let Err(error) = found {
                let named = format!("`dpctl/dump-conntrack {}`", arguments.join(" "));
                assert!(error.contains(&named), "{error}");
            }
        }
    }

    #[test]
    fn flush_takes_tuples_of_both_directions() {
        let method = "dpctl/flush-conntrack";
        let tuple = |src: [u8; 4], ports: (u16, u16)| {
            let dst = IpAddr::from([10, 0, 0, 9]);
            Tuple::new(src.into(), dst, wire::Protocol::UDP, ports.0, ports.1).unwrap()
        };
        let (one, other) = (tuple([10, 0, 0, 1], (1, 2)), tuple([10, 0, 0, 2], (3, 2)));
        for (arguments, zone, accepted) in [
            (&[][..], None, [true, true]),
            (&["zone=5"], Some(Zone(5)), [true, true]),
            (&["zone=5", "ct_nw_src=10.0.0.1,ct_nw_proto=17"], Some(Zone(5)), [true, false]),
            (&["dp", "ct_tp_dst=2,ct_tp_src=3,ct_nw_dst=10.0.0.9"], None, [false, true]),
            (&["ct_nw_proto=6"], None, [false, false]),
            (&["ct_nw_proto=1,icmp_id=2"], None, [false, false]),
        ] {
            let (found, filters) = flushed(method, arguments).unwrap();
            assert_eq!(found, zone, "{arguments:?}");
            assert_eq!([one, other].map(|tuple| filters[0].accepts(&tuple)), accepted);
            assert!(filters[1].accepts(&one));
        }
        let (_, filters) = flushed(method, &["", "ct_nw_src=10.0.0.2"]).unwrap();
        assert!(filters[0].accepts(&one) && !filters[1].accepts(&one));
        for wrong in [&["ct_nw_src=10.0.0"][..], &["ct_mark=1"], &["ct_nw_src"]] {
            assert!(flushed(method, wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn exit_stops_as_the_program_does() {
        use Program::{Controller, Vswitchd};
        let cleanup = ["--cleanup"];
        let restart = ["--restart"];
        for (program, arguments, mode) in [
            (Vswitchd, &[][..], Some(Shutdown::Detach)),
            (Vswitchd, &cleanup, Some(Shutdown::Full)),
            (Vswitchd, &restart, None),
            (Controller, &[], Some(Shutdown::Full)),
            (Controller, &restart, Some(Shutdown::Detach)),
            (Controller, &cleanup, None),
        ] {
            assert_eq!(shutdown_kind(program, arguments), mode, "{program:?} {arguments:?}");
        }
    }
}
