//! How findings are shown: as lines for people, as one JSON object for programs.

use crate::drivers;
use crate::facts::NicFacts;
use crate::finding::{Finding, Level};
use crate::judge::tunnel::{Outcome, TunnelVerdict};
use netdev::ethtool::hardware::TunnelTable;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// Everything that was found.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Report {
    /// The devices that were looked at.
    pub nics: Vec<NicReport>,
    /// One line for each thing that was looked at, in the order in which it was.
    pub findings: Vec<Finding>,
    /// What was changed, if that was asked for.
    pub fixed: Vec<Fixed>,
}

/// A change that was made, or tried.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Fixed {
    /// The command that does the same.
    pub did: String,
    /// The command that takes it back.
    pub undo: String,
    /// Why it could not be done.
    pub failed: Option<String>,
}

/// A table of tunnel ports of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TunnelPorts {
    /// How many fit.
    pub size: u32,
    /// The tunnels it is for.
    pub types: Vec<String>,
    /// Those in it.
    pub ports: Vec<u16>,
}

/// A device.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct NicReport {
    /// Its name.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// The version of its firmware; empty for software devices.
    pub firmware: String,
    /// Mbit/s, if it has a speed.
    pub speed_mbps: Option<u32>,
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// The highest that it takes.
    pub max_mtu: u32,
    /// Receive queues in use.
    pub rx_queues: usize,
    /// Transmit queues, as far as the driver says.
    pub tx_queues: Option<u32>,
    /// Frames of a receive ring and of a transmit ring.
    pub rings: Option<(u32, u32)>,
    /// `on`, `off`, `on [fixed]`, `off [fixed]` or `off [requested on]`, by feature.
    pub features: BTreeMap<String, String>,
    /// Its tables of tunnel ports: size, types, ports.
    pub tunnel_tables: Option<Vec<TunnelPorts>>,
    /// The fields that receive-side scaling hashes, by kind of packet.
    pub hashed: BTreeMap<&'static str, &'static str>,
    /// The processors that RPS hands packets to, by receive queue.
    pub rps: Vec<String>,
    /// The flows that RFS remembers, by receive queue.
    pub rfs: Vec<u32>,
    /// The processors that use a transmit queue, by transmit queue.
    pub xps: Vec<String>,
    /// Native XDP; `None` when the kernel does not say.
    pub native_xdp: Option<bool>,
    /// Where what is known of the driver is written.
    pub driver_source: Option<&'static str>,
    /// What it does for each tunnel type.
    pub tunnels: Vec<TunnelVerdict>,
}

impl NicReport {
    /// The report on a device with these verdicts.
    pub fn new(nic: &NicFacts, tunnels: Vec<TunnelVerdict>) -> Self {
        let steering = nic.steering.clone().unwrap_or_default();
        let hashed = nic.rss.iter().flat_map(|rss| &rss.fields).map(|(flow, fields)| {
            let shown = match (fields.has_addresses(), fields.has_ports()) {
                (_, true) => "addresses and ports",
                (true, false) => "addresses",
                (false, false) => "other fields",
            };
            (flow.name(), shown)
        });
        Self {
            name: nic.name.clone(),
            driver: nic.driver.driver.clone(),
            firmware: nic.driver.firmware.clone(),
            speed_mbps: nic.speed_mbps,
            mtu: nic.mtu,
            max_mtu: nic.max_mtu,
            rx_queues: nic.active_rx_queues(),
            tx_queues: nic.channels.map(|channels| channels.tx),
            rings: nic.rings.map(|rings| (rings.rx, rings.tx)),
            features: nic
                .features
                .0
                .iter()
                .map(|(name, feature)| {
                    let state = match (feature.on, feature.fixed, feature.wanted) {
                        (true, false, _) => "on",
                        (true, true, _) => "on [fixed]",
                        (false, true, _) => "off [fixed]",
                        (false, false, true) => "off [requested on]",
                        (false, false, false) => "off",
                    };
                    (name.clone(), state.to_owned())
                })
                .collect(),
            tunnel_tables: nic.tunnel_tables.as_ref().map(|tables| {
                let parts = tables.iter().cloned();
                parts
                    .map(|TunnelTable { size, types, ports }| TunnelPorts { size, types, ports })
                    .collect()
            }),
            hashed: hashed.collect(),
            rps: steering.rx.iter().map(|queue| queue.rps_cpus.to_string()).collect(),
            rfs: steering.rx.iter().map(|queue| queue.rps_flows).collect(),
            xps: steering.tx.iter().flatten().map(ToString::to_string).collect(),
            native_xdp: nic.xdp.map(|xdp| xdp.is_native()),
            driver_source: drivers::find(&nic.driver.driver).map(|driver| driver.source),
            tunnels,
        }
    }
}

impl Report {
    /// The worst there is.
    pub fn level(&self) -> Level {
        self.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Pass)
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut out);
        out
    }

    /// For people who want to know what is wrong only.
    pub fn brief(&self) -> String {
        let mut out = String::new();
        let mut wrong = self.findings.iter().filter(|finding| finding.level > Level::Pass);
        // Writing to a String cannot fail.
        let _ = wrong.try_for_each(|finding| write_finding(finding, &mut out));
        let _ = self.write_counts(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        for nic in &self.nics {
            write_nic(nic, out)?;
        }
        for Fixed { did, undo, failed } in &self.fixed {
            match failed {
                None => writeln!(out, "FIXED {did}\n     undo: {undo}")?,
                Some(why) => writeln!(out, "NOT FIXED {did}\n     why:  {why}")?,
            }
        }
        for finding in &self.findings {
            write_finding(finding, out)?;
        }
        self.write_counts(out)
    }

    fn write_counts(&self, out: &mut String) -> fmt::Result {
        let count = |level| self.findings.iter().filter(|found| found.level == level).count();
        let counts = [Level::Pass, Level::Warn, Level::Fail].map(count);
        writeln!(out, "{} pass, {} warn, {} fail", counts[0], counts[1], counts[2])
    }
}

fn write_nic(nic: &NicReport, out: &mut String) -> fmt::Result {
    write!(out, "{}: {}", nic.name, if nic.driver.is_empty() { "no driver" } else { &nic.driver })?;
    if !nic.firmware.is_empty() {
        write!(out, " (firmware {})", nic.firmware)?;
    }
    if let Some(mbps) = nic.speed_mbps {
        write!(out, ", {mbps} Mbit/s")?;
    }
    write!(out, ", MTU {}", nic.mtu)?;
    if nic.max_mtu > 0 {
        write!(out, " of at most {}", nic.max_mtu)?;
    }
    let xdp = match nic.native_xdp {
        Some(true) => "native XDP",
        Some(false) => "no native XDP",
        None => "XDP unknown",
    };
    writeln!(out, ", {} receive queue(s), {xdp}", nic.rx_queues)?;
    for TunnelPorts { size, types, ports } in nic.tunnel_tables.iter().flatten() {
        writeln!(
            out,
            "  tunnel ports: {} of {size} ({}) {ports:?}",
            ports.len(),
            types.join(", ")
        )?;
    }
    let rows = nic.tunnels.iter().map(|verdict| {
        let kernel = verdict.kernel_segmentation.as_ref();
        [
            verdict.tunnel.to_string(),
            verdict.segmentation.outcome.name().to_owned(),
            kernel.map_or("-", |kernel| kernel.outcome.name()).to_owned(),
            verdict.checksum.outcome.name().to_owned(),
            verdict.gro.outcome.name().to_owned(),
            verdict.spreading.outcome.name().to_owned(),
            verdict.cost.map_or("-".to_owned(), |cost| format!(">={:.2}", cost.at_least)),
            verdict.guest_mtu.to_string(),
        ]
    });
    let heads = ["", "segments", "kernel", "checksums", "GRO", "spreads", "keeps", "guest MTU"];
    let table: Vec<_> = std::iter::once(heads.map(str::to_owned)).chain(rows).collect();
    let width = |at: usize| table.iter().map(|row| row[at].len()).max().unwrap_or(0);
    let widths: [usize; 8] = std::array::from_fn(width);
    for row in &table {
        let mut line = String::from(" ");
        for (cell, width) in row.iter().zip(widths) {
            write!(line, " {cell:<width$} ")?;
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    for (part, why, tunnels) in whys(&nic.tunnels) {
        let of =
            if tunnels.len() == nic.tunnels.len() { "all".to_owned() } else { tunnels.join(", ") };
        writeln!(out, "  {part}, {of}: {why}")?;
    }
    writeln!(out)
}

/// Why devices do not do things, each reason once: what, why, and the tunnels. That the kernel merges is as it should be.
fn whys(verdicts: &[TunnelVerdict]) -> Vec<(&'static str, &str, Vec<&'static str>)> {
    let mut whys: Vec<(&'static str, &str, Vec<&'static str>)> = Vec::new();
    for verdict in verdicts {
        let parts = [
            ("segments", Some(&verdict.segmentation)),
            ("kernel", verdict.kernel_segmentation.as_ref()),
            ("checksums", Some(&verdict.checksum)),
            ("GRO", Some(&verdict.gro).filter(|gro| gro.outcome == Outcome::No)),
            ("spreads", Some(&verdict.spreading)),
        ];
        for (part, found) in parts {
            let Some(found) = found.filter(|found| found.outcome != Outcome::Yes) else { continue };
            match whys.iter_mut().find(|(other, why, _)| *other == part && *why == found.why) {
                Some((_, _, tunnels)) => tunnels.push(verdict.tunnel.name()),
                None => whys.push((part, &found.why, vec![verdict.tunnel.name()])),
            }
        }
    }
    whys
}

fn write_finding(finding: &Finding, out: &mut String) -> fmt::Result {
    let Finding { check, level, subject, seen, why, mend } = finding;
    writeln!(out, "{} {check} {subject}: {seen}", level.name())?;
    if *level > Level::Pass {
        writeln!(out, "     why:  {why}")?;
        if let Some(mend) = mend {
            writeln!(out, "     mend: {}", mend.command())?;
        }
    }
    Ok(())
}
