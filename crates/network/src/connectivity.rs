//! Connectivity: which logical switches reach each other through logical routers.

/// The connected parts of a network (union-find).
#[derive(Clone, Debug)]
pub(crate) struct Connectivity {
    /// For each switch, then for each router, its parent in the tree of its part; the root is its
    /// own parent.
    toward: Vec<usize>,
    switches: usize,
}

impl Connectivity {
    /// The connectivity before any links are added.
    pub(crate) fn new(switches: usize, routers: usize) -> Self {
        Self { toward: (0..switches + routers).collect(), switches }
    }

    /// Links a router port to a switch.
    pub(crate) fn link_switch(&mut self, router: usize, switch: usize) {
        self.link(self.switches + router, switch);
    }

    /// Links two routers.
    pub(crate) fn link_routers(&mut self, one: usize, other: usize) {
        self.link(self.switches + one, self.switches + other);
    }

    /// The part that a switch belongs to.
    pub(crate) fn part_of_switch(&self, switch: usize) -> usize {
        self.root(switch)
    }

    /// The part that a router belongs to.
    pub(crate) fn part_of_router(&self, router: usize) -> usize {
        self.root(self.switches + router)
    }

    fn link(&mut self, one: usize, other: usize) {
        let (one, other) = (self.shorten(one), self.shorten(other));
        self.toward[one] = other;
    }

    fn root(&self, mut at: usize) -> usize {
        while self.toward[at] != at {
            at = self.toward[at];
        }
        at
    }

    /// The root of `at`; halves the path to it, which keeps paths short.
    fn shorten(&mut self, mut at: usize) -> usize {
        while self.toward[at] != at {
            let next = self.toward[at];
            self.toward[at] = self.toward[next];
            at = next;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_in_one_part_when_routers_lead_from_one_to_the_other() {
        let mut connectivity = Connectivity::new(4, 3);
        connectivity.link_switch(0, 0);
        connectivity.link_switch(0, 1);
        connectivity.link_routers(0, 1);
        connectivity.link_routers(1, 0);
        connectivity.link_switch(1, 2);
        assert_eq!(connectivity.part_of_switch(0), connectivity.part_of_switch(2));
        assert_eq!(connectivity.part_of_switch(1), connectivity.part_of_router(1));
        assert_ne!(connectivity.part_of_switch(0), connectivity.part_of_switch(3));
        assert_ne!(connectivity.part_of_router(2), connectivity.part_of_switch(3));
    }
}
