//! Problems that enqueue problems and say something about their job, from a controller to the database and back.

use pcfarm_bench::farm::{Farm, LONG};
use pcfarm_proto::ids::JobId;
use serde_json::{Value, json};

async fn tree(farm: &Farm, width: u32, depth: u32) -> JobId {
    farm.job_type("tree", "bringing", json!({"max_attempts": 5})).await;
    farm.job_type("leaf", "bringing", json!({"max_attempts": 5})).await;
    let text = "select pcfarm.submit('tree', 'tree', $1, 100, $2::text::jsonb)";
    let query = format!("select 'r' as key, '{{\"depth\": {depth}}}'::jsonb as payload");
    farm.query(text, &[&query, &json!({"info": {"width": width}}).to_string()]).await[0].get(0)
}

#[tokio::test]
async fn a_tree_grows_whole_whoever_dies_meanwhile() {
    let farm = Farm::new().await;
    let mut server = farm.serving("a", &[]).await;
    let other = farm.serving("b", &[]).await;
    let mut first = farm.working("one", &[&server, &other]);
    let job = tree(&farm, 4, 5).await;
    farm.finished(job, 200, LONG).await;
    first.kill();
    server.program.kill();
    let _second = farm.working("two", &[&other]);
    assert_eq!(farm.ended(job, LONG).await, "done");

    let nodes: i64 = (0..=5).map(|depth| 4_i64.pow(depth)).sum();
    assert_eq!(farm.progress(job).await.0, nodes);
    let text = "select count(*) from pcfarm.job_problems where state = 'done' and attempts > 1 and job_type = 'leaf'";
    assert_eq!(farm.number(text).await, 4_i64.pow(4), "every fourth leaf failed once");
    assert_eq!(farm.number("select count(*) from pcfarm.problem where key = 'ghost'").await, 0);
    let leaves = "select count(*) from pcfarm.problem p join pcfarm.lane l using (job_id, lane_id)
        where l.job_type = 'leaf' and l.priority = 7 and p.weight = 2";
    assert_eq!(farm.number(leaves).await, 4_i64.pow(5));

    let info: pcfarm_sql::json::RawJson =
        farm.query("select info from pcfarm.job_info where job_id = $1", &[&job]).await[0].get(0);
    let info: Value = serde_json::from_slice(&info.0).expect("JSON");
    assert_eq!(
        (&info["width"], &info["depth of"]["r"], &info["depth of"]["r.3.1.2.0.0"]),
        (&json!(4), &json!(5), &json!(0))
    );
    assert_eq!(info["depth of"].as_object().map(serde_json::Map::len), usize::try_from(nodes).ok());
    farm.check(&[]).await;
}
