//! Serving gRPC: every limit is set here, since tonic's defaults leave most of them open.

use crate::accept::{Connections, PING_INTERVAL, PONG_WAIT};
use crate::access::gate::Gate;
use crate::farm::Farm;
use crate::files::Files;
use crate::grpc::access::AccessApi;
use crate::grpc::agent::AgentApi;
use crate::grpc::alerts::AlertsApi;
use crate::grpc::farm::FarmApi;
use crate::grpc::files::FilesApi;
use crate::grpc::health;
use crate::grpc::jobs::JobsApi;
use crate::grpc::join::JoinApi;
use crate::grpc::queue::QueueApi;
use crate::grpc::schedules::SchedulesApi;
use crate::grpc::workstations::WorkstationsApi;
use anyhow::Context;
use pcfarm_proto::v1::access_service_server::AccessServiceServer;
use pcfarm_proto::v1::agent_service_server::AgentServiceServer;
use pcfarm_proto::v1::alert_service_server::AlertServiceServer;
use pcfarm_proto::v1::farm_service_server::FarmServiceServer;
use pcfarm_proto::v1::file_service_server::FileServiceServer;
use pcfarm_proto::v1::job_service_server::JobServiceServer;
use pcfarm_proto::v1::join_service_server::JoinServiceServer;
use pcfarm_proto::v1::queue_service_server::QueueServiceServer;
use pcfarm_proto::v1::schedules_server::SchedulesServer;
use pcfarm_proto::v1::workstation_service_server::WorkstationServiceServer;
use pcfarm_proto::{DESCRIPTORS, MESSAGE_BYTES_LIMIT};
use std::sync::Arc;
use tonic::transport::Server;

/// Of what anybody may send who is not known yet.
const SMALL_MESSAGE_BYTES: usize = 64 << 10;

/// Bytes that a client may have under way. An agent's pieces fill a link of 100 Mbit/s and 300 ms with 4 MiB, and it has no more
/// under way than such a link needs.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;

/// Serves until the farm stops, then lets calls end.
pub async fn serve(
    farm: Arc<Farm>,
    (jobs, files): (Arc<JobsApi>, Arc<Files>),
    connections: Connections,
    warnings: Vec<String>,
) -> anyhow::Result<()> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<AgentServiceServer<AgentApi>>().await;
    health.set_serving::<FileServiceServer<FilesApi>>().await;
    health.set_serving::<JobServiceServer<JobsApi>>().await;
    health.set_serving::<WorkstationServiceServer<WorkstationsApi>>().await;
    health.set_serving::<FarmServiceServer<FarmApi>>().await;
    health.set_serving::<QueueServiceServer<QueueApi>>().await;
    health.set_serving::<AlertServiceServer<AlertsApi>>().await;
    health.set_serving::<AccessServiceServer<AccessApi>>().await;
    health.set_serving::<JoinServiceServer<JoinApi>>().await;
    health.set_serving::<SchedulesServer<SchedulesApi>>().await;
    farm.tasks.spawn(health::watch(farm.clone(), health));
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .context("building the reflection service")?;
    let (pool, lease) = (farm.pool.clone(), farm.rhythm.lease);
    Server::builder()
        .max_concurrent_streams(32)
        .http2_max_pending_accept_reset_streams(Some(20))
        .http2_max_local_error_reset_streams(Some(256))
        .http2_max_header_list_size(16 << 10)
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PONG_WAIT))
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(STREAM_WINDOW_BYTES)
        .layer(Gate::new(farm.access.clone(), farm.traces.clone()))
        .add_service(health_service)
        .add_service(reflection)
        .add_service(limit(AgentServiceServer::new(AgentApi::new(farm.clone(), files.clone()))))
        .add_service(
            FileServiceServer::new(FilesApi::new(farm.clone(), files))
                .max_decoding_message_size(MESSAGE_BYTES_LIMIT)
                .max_encoding_message_size(MESSAGE_BYTES_LIMIT),
        )
        .add_service(
            JobServiceServer::from_arc(jobs)
                .max_decoding_message_size(MESSAGE_BYTES_LIMIT)
                .max_encoding_message_size(MESSAGE_BYTES_LIMIT),
        )
        .add_service(
            WorkstationServiceServer::new(WorkstationsApi::new(pool.clone()))
                .max_decoding_message_size(MESSAGE_BYTES_LIMIT),
        )
        .add_service(
            QueueServiceServer::new(QueueApi::new(pool.clone())).max_decoding_message_size(MESSAGE_BYTES_LIMIT),
        )
        .add_service(
            AlertServiceServer::new(AlertsApi::new(pool.clone())).max_decoding_message_size(MESSAGE_BYTES_LIMIT),
        )
        .add_service(
            AccessServiceServer::new(AccessApi::new(farm.clone())).max_decoding_message_size(SMALL_MESSAGE_BYTES),
        )
        .add_service(JoinServiceServer::new(JoinApi::new(farm.clone())).max_decoding_message_size(SMALL_MESSAGE_BYTES))
        .add_service(
            SchedulesServer::new(SchedulesApi::new(pool.clone()))
                .max_decoding_message_size(MESSAGE_BYTES_LIMIT)
                .max_encoding_message_size(MESSAGE_BYTES_LIMIT),
        )
        .add_service(
            FarmServiceServer::new(FarmApi::new(pool, lease, warnings)).max_decoding_message_size(MESSAGE_BYTES_LIMIT),
        )
        .serve_with_incoming_shutdown(connections, farm.stopping.clone().cancelled_owned())
        .await
        .context("serving")
}

fn limit(service: AgentServiceServer<AgentApi>) -> AgentServiceServer<AgentApi> {
    service.max_decoding_message_size(MESSAGE_BYTES_LIMIT).max_encoding_message_size(MESSAGE_BYTES_LIMIT)
}
