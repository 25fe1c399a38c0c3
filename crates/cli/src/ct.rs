//! `weft ct`: the connections that a running switch tracks.

mod follow;

use crate::control::replies::{
    ConnectionEnds, ConnectionRow, ConnectionTotals, ConnectionUse, FlushReply,
};
use crate::control::{ConnectionFilter, DaemonSelector, Request, Stream, request};
use crate::stdio::Output;
use crate::table::{Align, Table};
use crate::{Failure, stdio};
use anyhow::anyhow;
use serde_json::{Value, json};

/// Show the connections that a running switch tracks, or remove some of them.
///
/// One line for each connection: the user of its zone, protocol and state, the addresses of packets
/// in the direction of the first packet, and after `reply` those of the other direction. They are
/// not mirror images where addresses are translated. The list is not a snapshot: a connection that
/// changes meanwhile may be left out.
///
/// --stats shows how many connections each zone and port has, and counters. --flush removes
/// connections. The next packet of a removed connection opens it again if the rules allow that.
///
/// --follow polls the connections once a second. It prints those that are new, have another
/// state, mark or label, or have ended, until it is interrupted. A connection that opens and ends
/// between two polls is not seen.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: DaemonSelector,
    #[command(flatten)]
    filter: ConnectionFilter,
    /// Show numbers of connections and counters
    #[arg(long, conflicts_with_all = ["flush", "ConnectionFilter"])]
    stats: bool,
    /// Print connections that open, change or end, until interrupted
    #[arg(long, conflicts_with_all = ["stats", "flush"])]
    follow: bool,
    /// Remove the connections that the other options select
    #[arg(long)]
    flush: bool,
    /// With --flush: remove all connections
    #[arg(long, requires = "flush", conflicts_with = "ConnectionFilter")]
    all: bool,
    /// Print JSON: one object per line, the last one is {"totals": ...}; with --follow, the
    /// number of connections and then one object per event
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  weft ct --host h1
  weft ct --host h1 --address 10.9.0.1:80 --state established
  weft ct --host h1 --address 10.0.1.10 --json | jq 'select(.source_nat) | .reply'
  weft ct --host h1 --follow --address 10.9.0.1:80
  weft ct --host h1 --stats
  weft ct --host h1 --flush --address 10.0.1.11
  weft ct --host h1 --flush --protocol tcp --src 10.0.1.10:4000 --dst 10.9.0.1:80
  weft ct --host h1 --flush --all

Exit codes: 0 success, 1 no daemon replies, 2 bad usage, an unknown port or zone.";

pub fn ct(args: &Args) -> Result<(), Failure> {
    let path = args.target.path()?;
    if args.flush {
        let filter = args.filter.clone();
        if filter == ConnectionFilter::default() && !args.all {
            return Err(Failure::Input(anyhow!(
                "cannot remove connections: none are selected; select some by zone, port, \
                 address, protocol or state, or add --all"
            )));
        }
        let FlushReply { removed } = request(&path, &Request::FlushConnections { filter })?;
        return stdio::print(&match args.json {
            true => format!("{}\n", json!({ "removed": removed })),
            false => format!("removed {removed} connections\n"),
        });
    }
    if args.follow {
        return follow::follow(&path, &args.filter, args.json);
    }
    let mut out = Output::new();
    let end: ConnectionTotals = if args.stats {
        let (_, stream): (Value, _) = Stream::open(&path, &Request::ConnectionUse)?;
        use_of(args.json, stream, &mut out)?
    } else {
        let request = Request::Connections { filter: args.filter.clone() };
        let (_, stream): (Value, _) = Stream::open(&path, &request)?;
        stream.all(
            |row: ConnectionRow| {
                if args.json { out.json(&row) } else { out.write(&describe(&row)) }
            },
        )?
    };
    if args.json {
        out.json(&json!({ "totals": end }))?;
    } else {
        out.write(&totals(&end, args.stats))?;
    }
    out.flush()
}

/// Prints the numbers of connections. There are at most as many rows as zones and ports.
fn use_of(json: bool, stream: Stream, out: &mut Output) -> Result<ConnectionTotals, Failure> {
    use Align::{Left, Right};
    let mut table =
        Table::new([("WHAT", Left), ("NAME", Left), ("CONNECTIONS", Right), ("LIMIT", Right)]);
    let end = stream.all(|row: ConnectionUse| {
        if json {
            return out.json(&row);
        }
        let limit = row.limit.map(|limit| limit.to_string()).unwrap_or_default();
        table.row([row.what, row.name, row.connections.to_string(), limit]);
        Ok(())
    })?;
    if !json {
        out.write(&table.to_string())?;
    }
    Ok(end)
}

fn describe(row: &ConnectionRow) -> String {
    let user = row.user.clone().unwrap_or_else(|| row.zone.to_string());
    let ConnectionRow { protocol, state, original, reply, port, .. } = row;
    let (original, reply) = (between(original), between(reply));
    let seconds = row.expires_ms / 1000;
    let mut line = format!("{user}: {protocol} {state} {original}  reply {reply}");
    if row.mark != 0 {
        line += &format!("  mark {:#x}", row.mark);
    }
    if row.label != "0x0" {
        line += &format!("  label {}", row.label);
    }
    line + &format!("  port {port}  expires {seconds} s\n")
}

/// `10.0.0.1:4000 -> 10.0.0.2:80`
fn between(ends: &ConnectionEnds) -> String {
    let end = |ip: std::net::IpAddr, port: Option<u16>| match port {
        Some(port) => std::net::SocketAddr::new(ip, port).to_string(),
        None => ip.to_string(),
    };
    let text = format!("{} -> {}", end(ends.src, ends.src_port), end(ends.dst, ends.dst_port));
    match ends.icmp_id {
        Some(id) => format!("{text} id {id}"),
        None => text,
    }
}

fn totals(end: &ConnectionTotals, with_counters: bool) -> String {
    let ConnectionTotals { connections, limit, committed, expired, replaced, flushed, .. } = end;
    let mut text = format!("{connections} connections of at most {limit}\n");
    if with_counters {
        text += &format!(
            "committed {committed}, expired {expired}, replaced {replaced}, removed {flushed}\n"
        );
        if end.not_saved > 0 {
            text += &format!("not saved for the next daemon {}\n", end.not_saved);
        }
        for (what, counts) in [("refused", &end.refused), ("invalid", &end.invalid)] {
            for (reason, count) in counts {
                text += &format!("{what} {reason} {count}\n");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection of a client to a load balancer.
    pub(super) fn row(state: &str) -> ConnectionRow {
        let ends = |src: [u8; 4], src_port, dst: [u8; 4], dst_port| ConnectionEnds {
            src: src.into(),
            dst: dst.into(),
            src_port: Some(src_port),
            dst_port: Some(dst_port),
            icmp_id: None,
            icmp_type: None,
            icmp_code: None,
        };
        ConnectionRow {
            zone: 3,
            user: Some("blue/vm1".to_owned()),
            protocol: "tcp".to_owned(),
            original: ends([10, 0, 0, 1], 4000, [10, 9, 0, 1], 80),
            reply: ends([10, 0, 0, 2], 8080, [10, 0, 0, 1], 4000),
            state: state.to_owned(),
            source_nat: false,
            destination_nat: true,
            mark: 2,
            label: "0x0".to_owned(),
            port: "vm1".to_owned(),
            expires_ms: 431_999_001,
        }
    }

    #[test]
    fn describe_shows_both_directions() {
        let mut row = row("ESTABLISHED");
        assert_eq!(
            describe(&row),
            "blue/vm1: tcp ESTABLISHED 10.0.0.1:4000 -> 10.9.0.1:80  \
             reply 10.0.0.2:8080 -> 10.0.0.1:4000  mark 0x2  port vm1  expires 431999 s\n"
        );
        (row.user, row.mark, row.label) = (None, 0, "0x7".to_owned());
        row.reply.icmp_id = Some(9);
        (row.reply.src_port, row.reply.dst_port) = (None, None);
        assert_eq!(
            describe(&row),
            "3: tcp ESTABLISHED 10.0.0.1:4000 -> 10.9.0.1:80  \
             reply 10.0.0.2 -> 10.0.0.1 id 9  label 0x7  port vm1  expires 431999 s\n"
        );
    }
}
