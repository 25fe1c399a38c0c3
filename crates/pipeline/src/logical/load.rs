//! [`Loader`]: from logical flows as text to a [`Program`], and from one program to the next when something changes.
//!
//! A logical flow is written once for all datapaths that it applies to. It is compiled once, too, and filed under that group
//! of datapaths, unless it mentions names that mean different things in different datapaths (a multicast group, a
//! port): then the group is divided by what the names mean. The loader remembers which names each flow has asked for, so
//! that a new port or a changed address set compiles just those flows again.

use super::actions::{self, Actions, Stage};
use super::error::SyntaxError;
use super::expr::{self, Expr};
use super::scope::Scope;
use super::token::Constant;
use crate::flow::{Flow, FlowCounters, FlowId, FlowText};
use crate::op::{Direction, Op};
use crate::program::{
    Datapath, DatapathKind, GroupId, LogicalPort, MulticastGroup, Program, TableId,
};
use ::flow::{DatapathKey, FlowKey, FlowMask, Match, PortKey, WORDS};
use std::cell::RefCell;
use std::sync::Arc;

type Map<K, V> = std::collections::HashMap<K, V, ahash::RandomState>;

/// A logical flow as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogicalFlow {
    /// The datapaths that it applies to.
    pub datapaths: Vec<DatapathKey>,
    /// The pipeline.
    pub direction: Direction,
    /// The table in it, 0 to 63.
    pub table: u8,
    /// 0 to 65,535; higher wins.
    pub priority: u16,
    /// The name of the stage.
    pub stage: String,
    /// The match, in OVN's language.
    pub condition: String,
    /// The actions, in OVN's language.
    pub actions: String,
    /// Where it was written.
    pub source: String,
    /// Shown in traces: the first 32 bits of the flow's UUID, 0 without.
    pub cookie: u64,
}

/// A logical flow that cannot be compiled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", self.describe())]
pub struct FlowError {
    /// Where the flow was written.
    pub source_name: String,
    /// Which part of it is wrong.
    pub part: FlowPart,
    /// The text of that part.
    pub text: String,
    /// What is wrong with it.
    pub error: Option<SyntaxError>,
}

impl FlowError {
    fn describe(&self) -> String {
        let Self { source_name, part, text, error } = self;
        match error {
            Some(error) => {
                let column = text.get(..error.span.start).unwrap_or(text).chars().count() + 1;
                format!("{source_name}: {part}, column {column}: {}\n    {text}", error.message)
            }
            None => format!("{source_name}: {part} is out of range: a pipeline has tables 0 to 63"),
        }
    }
}

/// A part of a logical flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowPart {
    /// The match.
    Match,
    /// The actions.
    Actions,
    /// The number of the table.
    Table,
}

impl std::fmt::Display for FlowPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Match => "match",
            Self::Actions => "actions",
            Self::Table => "table",
        })
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Loader {
    program: Program,
    names: Map<DatapathKey, Map<Arc<str>, PortKey>>,
    address_sets: Map<Arc<str>, Vec<Constant>>,
    port_groups: Map<Arc<str>, Vec<String>>,
    /// Ports that are on other hosts; all others are resident here.
    elsewhere: Map<Arc<str>, ()>,
    groups: Map<Arc<[DatapathKey]>, GroupId>,
    flows: Map<FlowId, Loaded>,
    /// Which flows have asked for a name.
    users: Map<Question, Vec<FlowId>>,
    strings: Strings,
    /// Compiled actions that mention no names.
    shared_ops: Map<(Arc<str>, TableId), Arc<[Op]>>,
    next: u64,
}

/// A flow that is in the program.
#[derive(Debug)]
struct Loaded {
    datapaths: Arc<[DatapathKey]>,
    recipe: Recipe,
    placed: Vec<Placed>,
    asked: Box<[Question]>,
}

/// What a flow is compiled from.
#[derive(Clone, Debug)]
struct Recipe {
    table: TableId,
    priority: u16,
    text: FlowText,
}

/// A flow as filed under a group.
#[derive(Debug)]
struct Placed {
    group: GroupId,
    flow: Arc<Flow>,
    rows: Box<[Row]>,
}

/// What the compiler asked for.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Question {
    Port(Arc<str>),
    AddressSet(Arc<str>),
    PortGroup(Arc<str>),
    Resident(Arc<str>),
}

/// A [`Match`] with only the words that matter: a program keeps one for each rule, so that it can be taken out again.
#[derive(Debug)]
struct Row {
    present: u64,
    /// Value and mask of each word present.
    words: Box<[(u64, u64)]>,
}

impl From<&Match> for Row {
    fn from(condition: &Match) -> Self {
        let (key, mask) = (condition.key().words(), condition.mask().words());
        let present = (0..WORDS).filter(|&at| mask[at] != 0);
        Self {
            present: present.clone().fold(0, |bits, at| bits | 1 << at),
            words: present.map(|at| (key[at], mask[at])).collect(),
        }
    }
}

impl From<&Row> for Match {
    fn from(row: &Row) -> Self {
        let (mut key, mut mask) = (FlowKey::default(), FlowMask::default());
        let present = (0..WORDS).filter(|at| row.present & 1 << at != 0);
        for (at, &(value, bits)) in present.zip(&row.words) {
            key.words_mut()[at] = value;
            mask.words_mut()[at] = bits;
        }
        Self::new(&key, mask)
    }
}

/// The match and the actions of a flow, parsed.
struct Parsed {
    /// With what the actions need to be true.
    condition: Expr,
    actions: Actions,
}

impl Parsed {
    fn new(recipe: &Recipe) -> Result<Self, Box<FlowError>> {
        let text = &recipe.text;
        let fault = |part, text: &Arc<str>| {
            let (source_name, text) = (recipe.text.source.to_string(), text.to_string());
            move |error| Box::new(FlowError { source_name, part, text, error: Some(error) })
        };
        let condition =
            expr::parse(&text.condition).map_err(fault(FlowPart::Match, &text.condition))?;
        let actions = actions::parse(&text.actions, Stage::of(recipe.table))
            .map_err(fault(FlowPart::Actions, &text.actions))?;
        let needed = actions.prerequisites().into_iter().filter_map(|text| expr::parse(text).ok());
        Ok(Self { condition: needed.fold(condition, Expr::and), actions })
    }
}

/// What names mean in a datapath, remembering which were asked for.
struct Asking<'a> {
    loader: &'a Loader,
    datapath: DatapathKey,
    asked: RefCell<Vec<Question>>,
}

impl Asking<'_> {
    fn ask(&self, question: Question) {
        let mut asked = self.asked.borrow_mut();
        if !asked.contains(&question) {
            asked.push(question);
        }
    }
}

impl Scope for Asking<'_> {
    fn port(&self, name: &str) -> Option<u16> {
        // What `outport` is while nothing has been chosen: ovn-northd asks for it under this name.
        if matches!(name, "none" | "") {
            return Some(0);
        }
        self.ask(Question::Port(name.into()));
        self.loader.names.get(&self.datapath)?.get(name).map(|key| key.value())
    }

    fn address_set(&self, name: &str) -> Option<&[Constant]> {
        self.ask(Question::AddressSet(name.into()));
        self.loader.address_sets.get(name).map(Vec::as_slice)
    }

    fn port_group(&self, name: &str) -> Option<&[String]> {
        self.ask(Question::PortGroup(name.into()));
        self.loader.port_groups.get(name).map(Vec::as_slice)
    }

    fn is_chassis_resident(&self, port: &str) -> bool {
        self.ask(Question::Resident(port.into()));
        !self.loader.elsewhere.contains_key(port)
    }
}

/// Texts that occur many times are kept once.
#[derive(Debug, Default)]
struct Strings(std::collections::HashSet<Arc<str>, ahash::RandomState>);

impl Strings {
    fn keep(&mut self, text: &str) -> Arc<str> {
        if let Some(kept) = self.0.get(text) {
            return Arc::clone(kept);
        }
        let kept: Arc<str> = text.into();
        self.0.insert(Arc::clone(&kept));
        kept
    }
}

impl Loader {
    /// The program as it is now: a value of its own, which later changes do not touch.
    pub fn program(&self) -> Program {
        self.program.clone()
    }

    /// Changes the physical side of the program: entries, tunnels, tags. Flows, datapaths and ports are the loader's.
    pub fn physical(&mut self) -> &mut Program {
        &mut self.program
    }

    /// Adds a datapath without ports.
    pub fn add_datapath(&mut self, key: DatapathKey, name: &str, kind: DatapathKind) {
        let mut datapath = Datapath::new(name, kind);
        let groups = self.groups.iter().filter(|(members, _)| members.contains(&key));
        datapath.groups = groups.map(|(_, &group)| group).collect();
        self.program.set_datapath(key, datapath);
        self.names.entry(key).or_default();
    }

    /// Adds or replaces a port. Its name is unique among ports and multicast groups of the datapath. Nothing happens when
    /// there is no such datapath.
    pub fn set_port(&mut self, datapath: DatapathKey, key: PortKey, port: LogicalPort) {
        let name = port.name.clone();
        let Some(entry) = self.program.datapath_mut(datapath) else { return };
        let old = entry.ports.insert(key, port).map(|port| port.name);
        self.rename(datapath, key, old, Some(&name));
    }

    /// Takes a port out.
    pub fn remove_port(&mut self, datapath: DatapathKey, key: PortKey) {
        let Some(entry) = self.program.datapath_mut(datapath) else { return };
        let old = entry.ports.remove(&key).map(|port| port.name);
        self.rename(datapath, key, old, None);
    }

    /// Adds or replaces a multicast group.
    pub fn set_multicast(&mut self, datapath: DatapathKey, key: PortKey, group: MulticastGroup) {
        let name = group.name.clone();
        let Some(entry) = self.program.datapath_mut(datapath) else { return };
        let old = entry.multicast.insert(key, group).map(|group| group.name);
        self.rename(datapath, key, old, Some(&name));
    }

    /// Makes `name` mean `key` in a datapath, and `old` mean nothing.
    fn rename(
        &mut self,
        datapath: DatapathKey,
        key: PortKey,
        old: Option<String>,
        name: Option<&str>,
    ) {
        if old.as_deref() == name {
            return;
        }
        for (name, meaning) in [(old.as_deref(), None), (name, Some(key))] {
            let Some(name) = name else { continue };
            let name = self.strings.keep(name);
            self.change(&Question::Port(Arc::clone(&name)), |loader| {
                let names = loader.names.entry(datapath).or_default();
                match meaning {
                    Some(key) => drop(names.insert(name, key)),
                    // Another key may have taken the name over.
                    None if names.get(&name) == Some(&key) => drop(names.remove(&name)),
                    None => {}
                }
            });
        }
    }

    /// Says what `$name` stands for.
    pub fn set_address_set(&mut self, name: &str, members: Vec<Constant>) {
        let name = self.strings.keep(name);
        self.change(&Question::AddressSet(Arc::clone(&name)), |loader| {
            loader.address_sets.insert(name, members);
        });
    }

    /// Says what `@name` stands for: names of ports.
    pub fn set_port_group(&mut self, name: &str, ports: Vec<String>) {
        let name = self.strings.keep(name);
        self.change(&Question::PortGroup(Arc::clone(&name)), |loader| {
            loader.port_groups.insert(name, ports);
        });
    }

    /// Says whether a port is on this host, for `is_chassis_resident`. Ports are, unless said otherwise.
    pub fn set_resident(&mut self, port: &str, resident: bool) {
        let port = self.strings.keep(port);
        self.change(&Question::Resident(Arc::clone(&port)), |loader| {
            if resident {
                loader.elsewhere.remove(&port);
            } else {
                loader.elsewhere.insert(port, ());
            }
        });
    }

    /// Changes the answer to a question, and compiles the flows that have asked it again.
    fn change(&mut self, question: &Question, change: impl FnOnce(&mut Self)) {
        change(self);
        for id in self.users.get(question).cloned().unwrap_or_default() {
            if let Some(loaded) = self.flows.remove(&id) {
                self.unplace(id, &loaded);
                // It was compiled once: its texts are correct whatever the names mean.
                let _ = self.place(id, loaded.datapaths, loaded.recipe);
            }
        }
    }

    /// Adds a flow. Its number is for [`Loader::remove_flow`].
    ///
    /// # Errors
    /// [`FlowError`] when the match or the actions are wrong; the program is as before.
    pub fn add_flow(&mut self, flow: &LogicalFlow) -> Result<FlowId, Box<FlowError>> {
        let table = TableId::logical(flow.direction, flow.table).ok_or_else(|| {
            Box::new(FlowError {
                source_name: flow.source.clone(),
                part: FlowPart::Table,
                text: flow.table.to_string(),
                error: None,
            })
        })?;
        let text = FlowText {
            condition: self.strings.keep(&flow.condition),
            actions: self.strings.keep(&flow.actions),
            stage: self.strings.keep(&flow.stage),
            source: self.strings.keep(&flow.source),
            cookie: flow.cookie,
        };
        let mut datapaths = flow.datapaths.clone();
        datapaths.sort_unstable();
        datapaths.dedup();
        let datapaths = match self.groups.get_key_value(&*datapaths) {
            Some((kept, _)) => Arc::clone(kept),
            None => datapaths.into(),
        };
        let id = FlowId(self.next);
        self.place(id, datapaths, Recipe { table, priority: flow.priority, text })?;
        self.next += 1;
        Ok(id)
    }

    /// Takes a flow out. `false` when it is not there.
    pub fn remove_flow(&mut self, id: FlowId) -> bool {
        let Some(loaded) = self.flows.remove(&id) else { return false };
        self.unplace(id, &loaded);
        true
    }

    /// How many flows there are.
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    fn unplace(&mut self, id: FlowId, loaded: &Loaded) {
        for placed in &loaded.placed {
            let rows: Vec<Match> = placed.rows.iter().map(Match::from).collect();
            self.program.remove_flow(placed.group, &placed.flow, &rows);
        }
        for question in &loaded.asked {
            if let Some(users) = self.users.get_mut(question) {
                users.retain(|user| *user != id);
                if users.is_empty() {
                    self.users.remove(question);
                }
            }
        }
    }

    /// Compiles a flow and files it under the groups of datapaths in which its names mean the same.
    fn place(
        &mut self,
        id: FlowId,
        datapaths: Arc<[DatapathKey]>,
        recipe: Recipe,
    ) -> Result<(), Box<FlowError>> {
        let parsed = Parsed::new(&recipe)?;
        let mut placed = Vec::new();
        let mut asked: Vec<Question> = Vec::new();
        let mut left: Vec<DatapathKey> = datapaths.to_vec();
        while let Some(&first) = left.first() {
            let asking = Asking { loader: self, datapath: first, asked: RefCell::default() };
            let compiled = expr::compile(&parsed.condition, &asking);
            let ops = self.compile_actions(&parsed.actions, &recipe, &asking);
            let questions = asking.asked.into_inner();
            let (same, other): (Vec<_>, Vec<_>) = left.iter().partition(|&&datapath| {
                questions.iter().all(|q| self.answer(datapath, q) == self.answer(first, q))
            });
            let whole = other.is_empty() && placed.is_empty();
            let members = if whole { Arc::clone(&datapaths) } else { same.into() };
            left = other;
            if questions.is_empty() {
                let key = (Arc::clone(&recipe.text.actions), recipe.table);
                self.shared_ops.entry(key).or_insert_with(|| Arc::clone(&ops));
            }
            asked.extend(questions);
            if compiled.rows.is_empty() {
                continue;
            }
            let group = self.group(members);
            let flow = Arc::new(Flow {
                id,
                table: recipe.table,
                priority: recipe.priority,
                residual: compiled.residual,
                ops,
                text: recipe.text.clone(),
                counters: FlowCounters::default(),
            });
            self.program.add_flow(group, &flow, &compiled.rows);
            placed.push(Placed {
                group,
                flow,
                rows: compiled.rows.iter().map(Row::from).collect(),
            });
        }
        asked.sort_unstable();
        asked.dedup();
        for question in &asked {
            self.users.entry(question.clone()).or_default().push(id);
        }
        placed.shrink_to_fit();
        self.flows.insert(id, Loaded { datapaths, recipe, placed, asked: asked.into() });
        Ok(())
    }

    fn compile_actions(
        &self,
        actions: &Actions,
        recipe: &Recipe,
        asking: &Asking<'_>,
    ) -> Arc<[Op]> {
        let key = (Arc::clone(&recipe.text.actions), recipe.table);
        match self.shared_ops.get(&key) {
            Some(ops) => Arc::clone(ops),
            None => actions::compile(actions, asking),
        }
    }

    /// The group of these datapaths, made if there is none.
    fn group(&mut self, members: Arc<[DatapathKey]>) -> GroupId {
        if let Some(&group) = self.groups.get(&members) {
            return group;
        }
        let group = self.program.add_group();
        for &member in &*members {
            if let Some(datapath) = self.program.datapath_mut(member) {
                datapath.groups.push(group);
            }
        }
        self.groups.insert(members, group);
        group
    }

    /// What a question means in a datapath, as far as it differs between datapaths.
    fn answer(&self, datapath: DatapathKey, question: &Question) -> Option<PortKey> {
        match question {
            Question::Port(name) => self.names.get(&datapath)?.get(name).copied(),
            // The same everywhere.
            Question::AddressSet(_) | Question::PortGroup(_) | Question::Resident(_) => None,
        }
    }
}
