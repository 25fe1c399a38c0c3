//! `weft fdb`: where a running switch knows addresses to be.

use crate::control::answers::{Fdb, Forgotten};
use crate::control::{Request, Target, ask};
use crate::table::{Align, Table};
use crate::{Failure, text};
use serde_json::json;
use wire::MacAddr;

/// Show where MAC and IP addresses are, as a running switch knows them.
///
/// MAC addresses are those of the network file, and what was learnt beside, behind ports with `learn = true`. PORT is SWITCH//HOST
/// where it was heard from another host by a tunnel that names no ports, and SWITCH//uplink where it was heard with tags. IP addresses are what logical routers have asked
/// their neighbours for. AGE is the time since an address was seen last.
///
/// One port may teach so much and no more (docs/network-toml.md, "Limits"). What is known stays; REFUSED counts what was not learnt.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  weft fdb --host h1\n  weft fdb --host h1 --json | jq '.bindings[] | select(.age_ms > 60000)'\n  weft fdb --host h1 --forget 02:00:00:00:00:07\n\nExit codes: 0 done, 1 no daemon answers or nothing is known of the address, 2 bad usage."
)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Forget what was learnt of this MAC address
    #[arg(long, value_name = "MAC")]
    forget: Option<MacAddr>,
    /// One JSON object instead of tables
    #[arg(long)]
    json: bool,
}

pub fn fdb(args: &Args) -> Result<(), Failure> {
    let path = args.target.path()?;
    if let Some(mac) = args.forget {
        let Forgotten { entries } = ask(&path, &Request::Forget { mac })?;
        if entries == 0 {
            return Err(anyhow::anyhow!("nothing was learnt of {mac}").into());
        }
        return text::print(&if args.json {
            format!("{}\n", json!({ "forgotten": entries }))
        } else {
            format!("forgot {mac}: {entries} entries\n")
        });
    }
    let fdb: Fdb = ask(&path, &Request::Fdb)?;
    if args.json {
        return text::print(&format!("{}\n", serde_json::to_string_pretty(&fdb)?));
    }
    text::print(&describe(&fdb))
}

fn describe(fdb: &Fdb) -> String {
    use Align::{Left, Right};
    let mut stations = Table::new([
        ("SWITCH", Left),
        ("MAC", Left),
        ("PORT", Left),
        ("HOST", Left),
        ("AGE", Right),
        ("ADDRESSES", Left),
    ]);
    for station in &fdb.stations {
        stations.row([
            station.logical_switch.clone(),
            station.mac.clone(),
            station.port.clone(),
            station.host.clone().unwrap_or_default(),
            age(station.age_ms),
            station.addresses.join(" "),
        ]);
    }
    let mut out = stations.to_string();
    if !fdb.bindings.is_empty() {
        let mut bindings = Table::new([
            ("ROUTER", Left),
            ("IP", Left),
            ("MAC", Left),
            ("PORT", Left),
            ("AGE", Right),
        ]);
        for binding in &fdb.bindings {
            bindings.row([
                binding.datapath.clone(),
                binding.ip.to_string(),
                binding.mac.clone(),
                binding.port.clone(),
                age(binding.age_ms),
            ]);
        }
        out += &format!("\n{bindings}");
    }
    if !fdb.refused.is_empty() {
        let mut refused = Table::new([
            ("DATAPATH", Left),
            ("PORT", Left),
            ("LEARNT", Left),
            ("KNOWN", Right),
            ("REFUSED", Right),
        ]);
        for port in &fdb.refused {
            refused.row([
                port.datapath.clone(),
                port.port.clone(),
                port.what.clone(),
                port.known.to_string(),
                port.refused.to_string(),
            ]);
        }
        out += &format!("\n{refused}");
    }
    out
}

fn age(ms: Option<u64>) -> String {
    ms.map_or_else(|| "static".to_owned(), |ms| format!("{} s", ms / 1000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::answers::{Binding, Refused, Station};

    #[test]
    fn what_is_configured_has_no_age_and_what_was_refused_is_told() {
        let station = Station {
            logical_switch: "blue".to_owned(),
            mac: "02:00:00:00:00:01".to_owned(),
            port: "vm1".to_owned(),
            host: Some("h1".to_owned()),
            addresses: vec!["10.0.0.1".to_owned(), "fd00::1".to_owned()],
            age_ms: None,
        };
        let binding = Binding {
            datapath: "core".to_owned(),
            port: "core-blue".to_owned(),
            ip: [10, 0, 0, 9].into(),
            mac: "02:00:00:00:00:09".to_owned(),
            age_ms: Some(12_345),
        };
        let refused = Refused {
            datapath: "blue".to_owned(),
            port: "vm1".to_owned(),
            what: "stations".to_owned(),
            known: 8192,
            refused: 17,
        };
        let fdb = Fdb { stations: vec![station], bindings: vec![binding], refused: vec![refused] };
        let text = "\
SWITCH  MAC                PORT  HOST     AGE  ADDRESSES
blue    02:00:00:00:00:01  vm1   h1    static  10.0.0.1 fd00::1

ROUTER  IP        MAC                PORT        AGE
core    10.0.0.9  02:00:00:00:00:09  core-blue  12 s

DATAPATH  PORT  LEARNT    KNOWN  REFUSED
blue      vm1   stations   8192       17
";
        assert_eq!(describe(&fdb), text);
    }
}
