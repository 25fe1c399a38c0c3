//! The report: text for people, JSON for programs.

use crate::checks::tunnel::{PerformedBy, TunnelSupport};
use crate::drivers;
use crate::facts::NicFacts;
use crate::finding::{Finding, Level};
use netdev::ethtool::hardware::TunnelTable;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// The result of a diagnosis.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Report {
    /// The devices.
    pub nics: Vec<NicReport>,
    /// The findings, in the order of the checks.
    pub findings: Vec<Finding>,
    /// The fixes that were applied.
    pub fixed: Vec<Fixed>,
}

/// A fix that was applied, or failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Fixed {
    /// The equivalent command.
    pub did: String,
    /// The command that undoes it.
    pub undo: String,
    /// Why it failed.
    pub failed: Option<String>,
}

/// A table of UDP tunnel ports of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TunnelPorts {
    /// Its capacity.
    pub size: u32,
    /// The tunnel types it is for.
    pub types: Vec<String>,
    /// The ports in it.
    pub ports: Vec<u16>,
}

/// The facts of a device, and how it supports each tunnel type.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct NicReport {
    /// Its name.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// The version of its firmware; empty for software devices.
    pub firmware: String,
    /// Link speed in Mbit/s; `None` when the device has none.
    pub speed_mbps: Option<u32>,
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// The largest MTU that it accepts; 0 when unknown.
    pub max_mtu: u32,
    /// Receive queues in use.
    pub rx_queues: usize,
    /// Transmit queues, as the driver reports them.
    pub tx_queues: Option<u32>,
    /// Frames in each receive ring and each transmit ring.
    pub rings: Option<(u32, u32)>,
    /// `on`, `off`, `on [fixed]`, `off [fixed]` or `off [requested on]`, by feature.
    pub features: BTreeMap<String, String>,
    /// Its tables of UDP tunnel ports.
    pub tunnel_tables: Option<Vec<TunnelPorts>>,
    /// The fields that RSS hashes, by flow type.
    pub hashed: BTreeMap<&'static str, &'static str>,
    /// The CPU mask of RPS, by receive queue.
    pub rps: Vec<String>,
    /// The size of the RFS flow table, by receive queue.
    pub rfs: Vec<u32>,
    /// The CPU mask of XPS, by transmit queue.
    pub xps: Vec<String>,
    /// The driver supports native XDP; `None` if the kernel does not report it.
    pub native_xdp: Option<bool>,
    /// The source of the driver's properties in [`drivers`].
    pub driver_source: Option<&'static str>,
    /// How it supports each tunnel type.
    pub tunnels: Vec<TunnelSupport>,
}

impl NicReport {
    /// The report on a device.
    pub fn new(nic: &NicFacts, tunnels: Vec<TunnelSupport>) -> Self {
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
    /// The worst severity.
    pub fn level(&self) -> Level {
        self.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Pass)
    }

    /// The whole report as text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut out);
        out
    }

    /// The findings worse than PASS as text.
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
    let rows = nic.tunnels.iter().map(|support| {
        let kernel = support.kernel_segmentation.as_ref();
        [
            support.tunnel.to_string(),
            support.segmentation.outcome.name().to_owned(),
            kernel.map_or("-", |kernel| kernel.outcome.name()).to_owned(),
            support.checksum.outcome.name().to_owned(),
            support.gro.outcome.name().to_owned(),
            support.spreading.outcome.name().to_owned(),
            support.cost.map_or("-".to_owned(), |cost| format!(">={:.2}", cost.at_least)),
            support.guest_mtu.to_string(),
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
    for (part, why, tunnels) in unsupported_reasons(&nic.tunnels) {
        let of =
            if tunnels.len() == nic.tunnels.len() { "all".to_owned() } else { tunnels.join(", ") };
        writeln!(out, "  {part}, {of}: {why}")?;
    }
    writeln!(out)
}

/// The reasons why devices do not perform an offload, without duplicates: the offload, the reason,
/// the tunnel types. GRO by the kernel is the normal case and left out.
fn unsupported_reasons(supports: &[TunnelSupport]) -> Vec<(&'static str, &str, Vec<&'static str>)> {
    let mut reasons: Vec<(&'static str, &str, Vec<&'static str>)> = Vec::new();
    for support in supports {
        let parts = [
            ("segments", Some(&support.segmentation)),
            ("kernel", support.kernel_segmentation.as_ref()),
            ("checksums", Some(&support.checksum)),
            ("GRO", Some(&support.gro).filter(|gro| gro.outcome == PerformedBy::No)),
            ("spreads", Some(&support.spreading)),
        ];
        for (part, found) in parts {
            let Some(found) = found.filter(|found| found.outcome != PerformedBy::Yes) else {
                continue;
            };
            match reasons.iter_mut().find(|(other, why, _)| *other == part && *why == found.why) {
                Some((_, _, tunnels)) => tunnels.push(support.tunnel.name()),
                None => reasons.push((part, &found.why, vec![support.tunnel.name()])),
            }
        }
    }
    reasons
}

fn write_finding(finding: &Finding, out: &mut String) -> fmt::Result {
    let Finding { check, level, subject, seen, why, fix } = finding;
    writeln!(out, "{} {check} {subject}: {seen}", level.name())?;
    if *level > Level::Pass {
        writeln!(out, "     why:  {why}")?;
        if let Some(fix) = fix {
            writeln!(out, "     fix:  {}", fix.command())?;
        }
    }
    Ok(())
}
