//! What steps depend on: things that can serve so many at a time, and clients that use such things.
//!
//! Owns what is said of them. What follows from it is decided by `wiring`.

/// Something that a step uses.
///
/// A *bounded* one serves so many at a time: a database with fifty connections, five licences, a disk. It has a pool of
/// threads, and steps that use it run there. A *client* is code that uses others: it has no pool, and a step that uses it
/// belongs to the pool of what it uses in the end.
///
/// Dependencies are the same if their names are, across all controllers of an agent.
///
/// ```
/// use pcfarm_worker::steps::Dependency;
///
/// let database = Dependency::bounded("database", 50).queue(200);
/// let fares = Dependency::client("fares").uses(&database);
/// # let _ = fares;
/// ```
#[derive(Clone, Debug)]
pub struct Dependency {
    pub(super) name: String,
    pub(super) bound: Option<Bound>,
    pub(super) uses: Vec<Dependency>,
    /// Declared elsewhere.
    pub(super) uses_named: Vec<String>,
}

/// How many a dependency serves at a time, and how many more may wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    pub least: usize,
    pub most: usize,
    pub queue: usize,
}

impl Bound {
    /// Problems that may be on their way to it, waiting for it, or served by it.
    pub fn places(&self) -> usize {
        self.most.saturating_add(self.queue)
    }
}

/// What is said that a step uses: a [`Dependency`], or a value of one's own that knows its own, such as a client that was
/// given a pool of connections.
pub trait Uses {
    fn dependency(&self) -> Dependency;
}

impl Uses for Dependency {
    fn dependency(&self) -> Dependency {
        self.clone()
    }
}

impl<U: Uses + ?Sized> Uses for std::sync::Arc<U> {
    fn dependency(&self) -> Dependency {
        (**self).dependency()
    }
}

/// A queue is at least so long: what is waiting here costs little, and hides the time until more comes.
const QUEUE_LEAST: usize = 16;

/// The cores, as a dependency.
pub(super) const CORES: &str = "cores";

impl Dependency {
    /// Something that serves so many at a time. As many again may wait for it, and at least 16; [`Dependency::queue`] says
    /// otherwise.
    pub fn bounded(name: impl Into<String>, size: usize) -> Dependency {
        let bound = Bound { least: size, most: size, queue: size.max(QUEUE_LEAST) };
        Dependency { name: name.into(), bound: Some(bound), uses: Vec::new(), uses_named: Vec::new() }
    }

    /// Code that uses others, and serves any number itself.
    pub fn client(name: impl Into<String>) -> Dependency {
        Dependency { name: name.into(), bound: None, uses: Vec::new(), uses_named: Vec::new() }
    }

    /// The cores that the owner allows: for a long computation that follows a step with a pool. It would run on that pool's
    /// thread otherwise, beside the cores, and keep a thread from what it is there for.
    pub fn cores() -> Dependency {
        Dependency::client(CORES)
    }

    /// Its pool may grow up to this while more threads serve more problems a second.
    #[must_use]
    pub fn up_to(mut self, most: usize) -> Dependency {
        if let Some(bound) = &mut self.bound {
            bound.most = most;
        }
        self
    }

    /// How many problems may wait for it, beside those that it serves.
    #[must_use]
    pub fn queue(mut self, problems: usize) -> Dependency {
        if let Some(bound) = &mut self.bound {
            bound.queue = problems;
        }
        self
    }

    /// It uses another one.
    #[must_use]
    pub fn uses(mut self, other: &(impl Uses + ?Sized)) -> Dependency {
        self.uses.push(other.dependency());
        self
    }

    /// It uses another one, which is declared elsewhere.
    #[must_use]
    pub fn uses_named(mut self, name: &str) -> Dependency {
        self.uses_named.push(name.to_owned());
        self
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}
