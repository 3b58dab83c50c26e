//! Looking which lanes there are, beside the hand-outs: of ten thousand lanes PostgreSQL needs a tenth of a second to tell, and
//! we as long to understand it.

use crate::farm::Farm;
use anyhow::Context;
use pcfarm_sql::job_types::JobType;
use pcfarm_sql::lanes::{self, OpenLane};
use pcfarm_sql::pool::Kept;
use pcfarm_sql::sharing::{self, Share};
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Which lanes have something to hand out, and how users share, not before this moment.
pub struct Sight {
    pub began: Instant,
    pub open: Vec<(OpenLane, Arc<JobType>)>,
    pub shares: Vec<Share>,
}

/// A look under way. Dropped, it comes to nothing.
pub struct Look(JoinHandle<anyhow::Result<(Kept, Sight)>>);

impl Look {
    /// Has the connection until it ends; after an error it is let go.
    pub fn begin(farm: &Arc<Farm>, began: Instant, mut line: Kept) -> Look {
        let this = farm.clone();
        Look(farm.tasks.spawn(async move {
            let client = line.client().await.context("getting a connection")?;
            let open = lanes::open_lanes(client).await.context("reading the open lanes")?;
            let shares = sharing::shares(client).await.context("reading users' shares")?;
            if open.iter().any(|lane| this.job_type(&lane.job_type).is_none()) {
                // A job type younger than our copy of them.
                this.reload_job_types().await.context("reading the job types")?;
            }
            // One that is younger still comes with the next look.
            let with_type = |lane: OpenLane| this.job_type(&lane.job_type).map(|job_type| (lane, job_type));
            let open = open.into_iter().filter_map(with_type).collect();
            Ok((line, Sight { began, open, shares }))
        }))
    }

    pub fn has_ended(&self) -> bool {
        self.0.is_finished()
    }

    /// What it found. Not to be awaited again after that.
    pub async fn end(&mut self) -> anyhow::Result<(Kept, Sight)> {
        (&mut self.0).await.context("looking ended early")?
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        self.0.abort();
    }
}
