//! The catalogue of the studies: the contenders, underlays and traffic patterns of each.

use network::TunnelType;

use super::scale::Axis;
use super::scenario::{Cell, Scenario};
use crate::Result;
use crate::lab::{Contender, Datapath, KernelTunnel, OvsTunnel, Profile, Shape};
use crate::study::model::Study;
use crate::traffic::load::{Load, Pattern};

impl Study {
    /// The cells of the study. A `quick` run omits scenarios without a claim, and measures every
    /// contender in at least one study. Every cell includes the bridge, unless only weft can run
    /// it.
    ///
    /// # Errors
    /// Never: all parameters in the catalogue are valid.
    pub fn cells(self, quick: bool) -> Result<Vec<Cell>> {
        match self {
            Self::SoftwareTunnelling => software_tunnelling(quick),
            Self::JumboFrames => jumbo_frames(quick),
            Self::GeneveVsVxlan => geneve_vs_vxlan(quick),
            Self::Qinq => qinq(quick),
            Self::SmallPackets => small_packets(quick),
            Self::Endpoints => Ok(scale(Axis::Endpoints, quick)),
            Self::Flows => Ok(scale(Axis::Megaflows, quick)),
            Self::OuterChecksum => outer_checksum(quick),
            Self::Entropy => entropy(quick),
        }
    }
}

/// The contenders of weft for `tunnels`, with each datapath.
fn weft(tunnels: &[TunnelType]) -> Vec<Contender> {
    let with = |datapath| tunnels.iter().map(move |&tunnel| Contender::Weft(datapath, tunnel));
    Datapath::ALL.into_iter().flat_map(with).collect()
}

/// Adds weft's bridges, which use the same flows as the bridges of the published study.
fn with_bridges(mut contenders: Vec<Contender>) -> Vec<Contender> {
    contenders.extend(Datapath::ALL.map(Contender::WeftBridge));
    contenders
}

fn ovs(tunnels: &[OvsTunnel]) -> Vec<Contender> {
    let with = |datapath| tunnels.iter().map(move |&tunnel| Contender::Ovs(datapath, tunnel));
    Datapath::ALL.into_iter().flat_map(with).collect()
}

fn kernel(tunnels: &[KernelTunnel]) -> Vec<Contender> {
    tunnels.iter().map(|&tunnel| Contender::Kernel(tunnel)).collect()
}

/// One veth pair (the upper limit of throughput), the bridge (the base), and the others.
fn beside(others: [Vec<Contender>; 3]) -> Vec<Contender> {
    [vec![Contender::Direct, Contender::LinuxBridge], others.concat()].concat()
}

/// The contenders except one veth pair, for cells that do not compute the cost of switching.
fn without_limit(contenders: Vec<Contender>) -> Vec<Contender> {
    contenders.into_iter().filter(|contender| *contender != Contender::Direct).collect()
}

fn load(pattern: Pattern, size: usize, connections: usize) -> Result<Load> {
    Load::new(pattern, size, connections)
}

fn software_tunnelling(quick: bool) -> Result<Vec<Cell>> {
    let ours = [TunnelType::Stt, TunnelType::Gre, TunnelType::Geneve, TunnelType::Vxlan];
    let contenders = beside([
        kernel(&[KernelTunnel::Vxlan, KernelTunnel::Gre]),
        ovs(match quick {
            true => &[OvsTunnel::Bridge, OvsTunnel::Gre],
            false => &[OvsTunnel::Bridge, OvsTunnel::Vxlan, OvsTunnel::Gre],
        }),
        weft(if quick { &ours[..2] } else { &ours }),
    ]);
    let scenarios = vec![
        Scenario::one_pair(load(Pattern::TcpStream, 32_768, 1)?),
        Scenario::pairs(4, load(Pattern::TcpBidirectional, 32_768, 1)?),
    ];
    let cell = |profile| Cell {
        shape: Shape { profile, guests_per_host: 4, ..Shape::default() },
        contenders: contenders.clone(),
        scenarios: scenarios.clone(),
    };
    // The published network card had plain TCP segmentation. With this feature alone, a veth device
    // does no GRO for tunnels, which a card would do. So the reports show this cell, and no claim
    // is judged by it.
    let few = beside([
        kernel(&[KernelTunnel::Vxlan, KernelTunnel::Gre]),
        Vec::new(),
        [TunnelType::Stt, TunnelType::Gre, TunnelType::Vxlan].map(Contender::weft).to_vec(),
    ]);
    let one = scenarios[..1].to_vec();
    let plain = Cell { contenders: few, scenarios: one.clone(), ..cell(Profile::Tso) };
    let mut none = cell(Profile::None);
    if quick {
        (none.contenders, none.scenarios) = (without_limit(none.contenders), one);
    }
    Ok(vec![cell(Profile::Full), plain, none])
}

fn jumbo_frames(quick: bool) -> Result<Vec<Cell>> {
    let (tunnels, none) = (kernel(&[KernelTunnel::Vxlan]), Vec::new);
    let ours = [TunnelType::Vxlan, TunnelType::Vlan];
    let contenders = match quick {
        true => without_limit(beside([tunnels, none(), weft(&ours[..1])])),
        false => beside([tunnels, none(), weft(&ours)]),
    };
    let untunnelled = beside([none(), none(), weft(&ours[1..])]);
    let scenarios = vec![
        Scenario::one_pair(load(Pattern::TcpStream, 131_072, 1)?),
        Scenario::one_pair(load(Pattern::TcpStream, 131_072, 4)?),
    ];
    let mut cells = Vec::new();
    for profile in [Profile::Full, Profile::None] {
        for (uplink_mtu, guest_mtu) in [(1600, 1500), (9000, 8900)] {
            let guest_mtu = Some(guest_mtu);
            let shape = Shape { profile, uplink_mtu, guest_mtu, ..Shape::default() };
            let (contenders, mut scenarios) = (contenders.clone(), scenarios.clone());
            if quick && (profile, uplink_mtu) != (Profile::None, 1600) {
                scenarios.truncate(1);
            }
            cells.push(Cell { shape, contenders, scenarios });
        }
    }
    let scenarios = if quick { scenarios[..1].to_vec() } else { scenarios };
    let shape = Shape { uplink_mtu: 9004, guest_mtu: Some(9000), ..Shape::default() };
    cells.push(Cell { shape, contenders: untunnelled, scenarios });
    let contenders = beside([
        kernel(&[KernelTunnel::Vxlan]),
        ovs(&[OvsTunnel::Vxlan]),
        weft(&[TunnelType::Vxlan]),
    ]);
    // One veth pair has no underlay, and this cell measures the underlay's MTU.
    let contenders = without_limit(contenders);
    let shape = Shape { uplink_mtu: 9000, ..Shape::default() };
    cells.push(Cell { shape, contenders, scenarios: vec![Scenario::Longest] });
    Ok(cells)
}

fn geneve_vs_vxlan(quick: bool) -> Result<Vec<Cell>> {
    let contenders = beside([
        kernel(&[KernelTunnel::Vxlan, KernelTunnel::Geneve]),
        ovs(&[OvsTunnel::Vxlan, OvsTunnel::Geneve]),
        weft(&[TunnelType::Vxlan, TunnelType::Geneve]),
    ]);
    let mut scenarios = Vec::new();
    for (pattern, sizes) in [
        (Pattern::TcpBidirectional, [1024, 16_384]),
        (Pattern::TcpStream, [1024, 16_384]),
        (Pattern::TcpRr, [1024, 16_384]),
        (Pattern::UdpRr, [64, 1024]),
    ] {
        for size in sizes {
            for connections in if quick { &[8][..] } else { &[8, 64] }.iter().copied() {
                scenarios.push(Scenario::one_pair(load(pattern, size, connections)?));
            }
        }
    }
    let contenders = if quick { without_limit(contenders) } else { contenders };
    Ok(vec![Cell { shape: Shape::default(), contenders, scenarios }])
}

fn qinq(quick: bool) -> Result<Vec<Cell>> {
    let tags = [
        kernel(&[KernelTunnel::QinQ]),
        ovs(&[OvsTunnel::QinQ]),
        with_bridges(weft(&[TunnelType::QinQ])),
    ];
    let contenders = beside([
        kernel(&[KernelTunnel::Vxlan, KernelTunnel::Geneve, KernelTunnel::QinQ]),
        ovs(if quick { &[] } else { &[OvsTunnel::Vxlan, OvsTunnel::Geneve, OvsTunnel::QinQ] }),
        with_bridges(weft(&[TunnelType::Vxlan, TunnelType::Geneve, TunnelType::QinQ])),
    ]);
    let many = load(Pattern::TcpStream, 131_072, 128)?;
    let mut scenarios = vec![
        Scenario::one_pair(load(Pattern::TcpStream, 131_072, 1)?),
        Scenario::pairs(5, many.at_rate(4e8)?),
        Scenario::pairs(5, load(Pattern::TcpStream, 131_072, 1)?),
        Scenario::pairs(5, many),
    ];
    if quick {
        scenarios.truncate(2);
    }
    let cell = |profile, contenders: &[Contender]| Cell {
        shape: Shape { profile, guests_per_host: 5, ..Shape::default() },
        contenders: contenders.to_vec(),
        scenarios: scenarios.clone(),
    };
    Ok(match quick {
        true => vec![
            cell(Profile::None, &without_limit(contenders)),
            cell(Profile::Full, &without_limit(beside(tags))),
        ],
        false => vec![cell(Profile::None, &contenders), cell(Profile::Full, &contenders)],
    })
}

/// The packet rate, in packets per second, at which the cost of a packet is compared.
const SMALL_PACKETS: f64 = 20_000.0;

fn small_packets(quick: bool) -> Result<Vec<Cell>> {
    let contenders = beside([
        kernel(&[KernelTunnel::Vxlan, KernelTunnel::Geneve, KernelTunnel::Gre]),
        ovs(if quick { &[OvsTunnel::Vxlan] } else { &[OvsTunnel::Vxlan, OvsTunnel::Geneve] }),
        weft(if quick { &[TunnelType::Geneve, TunnelType::Nvgre] } else { &TunnelType::ALL }),
    ]);
    let packets = load(Pattern::UdpStream, 18, 8)?;
    let scenarios = vec![
        Scenario::Rate { load: packets },
        Scenario::one_pair(packets.at_rate(SMALL_PACKETS * 18.0 * 8.0)?),
        Scenario::one_pair(load(Pattern::TcpRr, 1, 1)?),
        Scenario::one_pair(load(Pattern::TcpCrr, 1, 8)?),
    ];
    Ok(vec![Cell { shape: Shape::default(), contenders, scenarios }])
}

/// The cells for increasing numbers of megaflows or end points.
fn scale(axis: Axis, quick: bool) -> Vec<Cell> {
    let counts: &[u64] = if quick { &[1, 100_000] } else { &[1, 1000, 100_000, 1_000_000] };
    let scenarios = counts.iter().map(|&count| Scenario::Scale { axis, count }).collect();
    let contenders = weft(&[TunnelType::Geneve]);
    vec![Cell { shape: Shape::default(), contenders, scenarios }]
}

fn outer_checksum(quick: bool) -> Result<Vec<Cell>> {
    let contenders = beside([
        kernel(&[KernelTunnel::Vxlan, KernelTunnel::Geneve]),
        Vec::new(),
        weft(if quick { &[TunnelType::Vxlan] } else { &[TunnelType::Vxlan, TunnelType::Geneve] }),
    ]);
    let contenders = if quick { without_limit(contenders) } else { contenders };
    let scenarios = vec![
        Scenario::one_pair(load(Pattern::TcpStream, 131_072, 1)?),
        Scenario::one_pair(load(Pattern::UdpRr, 64, 8)?),
    ];
    let mut cells = Vec::new();
    let profiles: &[Profile] =
        if quick { &[Profile::None] } else { &[Profile::Full, Profile::None] };
    for &profile in profiles {
        for checksum in [true, false] {
            let shape = Shape { profile, outer_checksum: Some(checksum), ..Shape::default() };
            let (contenders, scenarios) = (contenders.clone(), scenarios.clone());
            cells.push(Cell { shape, contenders, scenarios });
        }
    }
    Ok(cells)
}

fn entropy(quick: bool) -> Result<Vec<Cell>> {
    let ours = [TunnelType::Vxlan, TunnelType::Geneve, TunnelType::Gre, TunnelType::Stt];
    let contenders = beside([
        kernel(&[KernelTunnel::Vxlan, KernelTunnel::Gre]),
        if quick { Vec::new() } else { ovs(&[OvsTunnel::Vxlan]) },
        weft(if quick { &ours[..1] } else { &ours }),
    ]);
    let scenarios =
        vec![Scenario::Spread, Scenario::one_pair(load(Pattern::TcpStream, 131_072, 8)?)];
    // Open vSwitch and GRE cannot be configured to use one source port.
    let without = beside([kernel(&[KernelTunnel::Vxlan]), Vec::new(), weft(&[TunnelType::Vxlan])]);
    let mut cells = Vec::new();
    for (one_source_port, contenders) in [(false, contenders), (true, without)] {
        // One veth pair has no underlay, and this cell measures how the flows spread on it.
        let contenders = without_limit(contenders);
        for steering in [false, true] {
            let profile = Profile::None;
            let shape = Shape { steering, one_source_port, profile, ..Shape::default() };
            let (contenders, scenarios) = (contenders.clone(), scenarios.clone());
            cells.push(Cell { shape, contenders, scenarios });
        }
    }
    Ok(cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_study_has_the_base_in_every_cell_and_names_that_differ() {
        for study in Study::ALL {
            for cell in study.cells(false).unwrap() {
                let alone = cell.scenarios.iter().any(Scenario::joins_guests);
                assert_ne!(cell.contenders.contains(&Contender::LinuxBridge), alone, "{study}");
                let mut names: Vec<_> = cell.scenarios.iter().map(Scenario::name).collect();
                names.sort();
                names.dedup();
                assert_eq!(names.len(), cell.scenarios.len(), "{study}");
            }
            assert_eq!(study.name().parse::<Study>().unwrap(), study);
        }
    }

    #[test]
    fn every_profile_and_every_arm_of_entropy_is_in_a_study() {
        let all: Vec<Cell> =
            Study::ALL.iter().flat_map(|study| study.cells(true).unwrap()).collect();
        for profile in Profile::ALL {
            assert!(all.iter().any(|cell| cell.shape.profile == profile), "{profile}");
        }
        let arm = |cell: &Cell| (cell.shape.one_source_port, cell.shape.steering);
        let arms: Vec<_> = entropy(true).unwrap().iter().map(arm).collect();
        assert_eq!(arms, [(false, false), (false, true), (true, false), (true, true)]);
    }

    #[test]
    fn every_contender_is_in_a_quick_run() {
        let who = |quick| {
            let cells = Study::ALL.into_iter().flat_map(|study| study.cells(quick).unwrap());
            cells.flat_map(|cell| cell.contenders).collect::<Vec<_>>()
        };
        let (all, quick) = (who(false), who(true));
        let lacking: Vec<_> = all.iter().filter(|contender| !quick.contains(contender)).collect();
        assert!(lacking.is_empty(), "{lacking:?}");
    }

    #[test]
    fn scenarios_are_named_as_published() {
        let published = include_str!("../../../published/geneve-vs-vxlan.csv");
        let cells = Study::GeneveVsVxlan.cells(false).unwrap();
        let names: Vec<_> = cells.iter().flat_map(|c| &c.scenarios).map(Scenario::name).collect();
        let rows = published.lines().filter(|line| !line.starts_with(['#', 's']));
        let rows: Vec<_> = rows.filter_map(|line| line.split(',').next()).collect();
        assert!(rows.len() >= 24 && rows.iter().all(|row| names.iter().any(|n| n == row)));
        assert!(names.iter().all(|name| rows.contains(&name.as_str())));
    }
}
