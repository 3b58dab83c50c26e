//! Which scope each gRPC method and each REST route needs. What is not here is refused; a test holds it against the services'
//! descriptors, so that nothing is added without a decision.

use super::Scope;

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Anybody may: the call brings its own proof, or tells nothing.
    Nothing,
    /// Somebody who is known, or whom this server does not ask.
    Caller,
    Scope(Scope),
}

const SUBMIT: Need = Need::Scope(Scope::Submit);
const OPERATE: Need = Need::Scope(Scope::Operate);
const ADMINISTER: Need = Need::Scope(Scope::Administer);
const WORK: Need = Need::Scope(Scope::Work);

/// By `/package.Service/Method`.
pub const METHODS: &[(&str, Need)] = &[
    ("/pcfarm.v1.AgentService/Work", WORK),
    ("/pcfarm.v1.AgentService/Fetch", WORK),
    ("/pcfarm.v1.AgentService/OfferOutput", WORK),
    ("/pcfarm.v1.AgentService/PutOutput", WORK),
    ("/pcfarm.v1.AgentService/Check", WORK),
    // One's own files, unless one operates.
    ("/pcfarm.v1.FileService/Put", SUBMIT),
    ("/pcfarm.v1.FileService/Get", SUBMIT),
    ("/pcfarm.v1.FileService/List", SUBMIT),
    ("/pcfarm.v1.FileService/Remove", SUBMIT),
    // Of jobs of one's own, unless one operates.
    ("/pcfarm.v1.JobService/Submit", SUBMIT),
    ("/pcfarm.v1.JobService/ListJobs", SUBMIT),
    ("/pcfarm.v1.JobService/GetJob", SUBMIT),
    ("/pcfarm.v1.JobService/OpenJob", SUBMIT),
    ("/pcfarm.v1.JobService/HoldJob", SUBMIT),
    ("/pcfarm.v1.JobService/ReleaseJob", SUBMIT),
    ("/pcfarm.v1.JobService/CancelJob", SUBMIT),
    ("/pcfarm.v1.JobService/RetryJob", SUBMIT),
    ("/pcfarm.v1.JobService/SetInfo", SUBMIT),
    ("/pcfarm.v1.JobService/UpdateJob", SUBMIT),
    ("/pcfarm.v1.JobService/WaitJob", SUBMIT),
    ("/pcfarm.v1.JobService/ListProblems", SUBMIT),
    ("/pcfarm.v1.JobService/Results", SUBMIT),
    ("/pcfarm.v1.Schedules/Create", SUBMIT),
    ("/pcfarm.v1.Schedules/Get", SUBMIT),
    ("/pcfarm.v1.Schedules/List", SUBMIT),
    ("/pcfarm.v1.Schedules/Update", SUBMIT),
    ("/pcfarm.v1.Schedules/Enable", SUBMIT),
    ("/pcfarm.v1.Schedules/Disable", SUBMIT),
    ("/pcfarm.v1.Schedules/Delete", SUBMIT),
    ("/pcfarm.v1.Schedules/Trigger", SUBMIT),
    ("/pcfarm.v1.Schedules/History", SUBMIT),
    ("/pcfarm.v1.Schedules/NextTimes", SUBMIT),
    ("/pcfarm.v1.Schedules/Export", SUBMIT),
    ("/pcfarm.v1.Schedules/Apply", SUBMIT),
    ("/pcfarm.v1.AlertService/Subscribe", SUBMIT),
    ("/pcfarm.v1.AlertService/ListSubscriptions", SUBMIT),
    ("/pcfarm.v1.AlertService/Unsubscribe", SUBMIT),
    ("/pcfarm.v1.AlertService/ListAlerts", SUBMIT),
    ("/pcfarm.v1.AlertService/RetryAlert", SUBMIT),
    ("/pcfarm.v1.FarmService/Explain", SUBMIT),
    ("/pcfarm.v1.FarmService/ListEvents", SUBMIT),
    ("/pcfarm.v1.FarmService/ListStatistics", SUBMIT),
    ("/pcfarm.v1.FarmService/ListUsage", SUBMIT),
    ("/pcfarm.v1.FarmService/GetClock", SUBMIT),
    ("/pcfarm.v1.QueueService/ListUsers", SUBMIT),
    // A look at the farm, in which nothing of others is.
    ("/pcfarm.v1.FarmService/GetStatus", SUBMIT),
    ("/pcfarm.v1.WorkstationService/ListWorkstations", SUBMIT),
    ("/pcfarm.v1.WorkstationService/ListSlots", SUBMIT),
    ("/pcfarm.v1.WorkstationService/GetSelection", SUBMIT),
    ("/pcfarm.v1.WorkstationService/GetPresence", SUBMIT),
    ("/pcfarm.v1.QueueService/ListResources", SUBMIT),
    ("/pcfarm.v1.QueueService/ListProfiles", SUBMIT),
    ("/pcfarm.v1.QueueService/ListSignals", SUBMIT),
    ("/pcfarm.v1.QueueService/ListJobTypes", SUBMIT),
    ("/pcfarm.v1.QueueService/ListQuotas", SUBMIT),
    // What runs where, and whether.
    ("/pcfarm.v1.WorkstationService/DrainWorkstations", OPERATE),
    ("/pcfarm.v1.WorkstationService/NoteWorkstations", OPERATE),
    ("/pcfarm.v1.WorkstationService/WakeWorkstations", OPERATE),
    ("/pcfarm.v1.WorkstationService/ForgetWorkstations", OPERATE),
    ("/pcfarm.v1.WorkstationService/SetSelection", OPERATE),
    ("/pcfarm.v1.WorkstationService/SetPresence", OPERATE),
    ("/pcfarm.v1.WorkstationService/SetSlot", OPERATE),
    ("/pcfarm.v1.QueueService/Suspend", OPERATE),
    ("/pcfarm.v1.QueueService/Park", OPERATE),
    ("/pcfarm.v1.QueueService/SetSignal", OPERATE),
    // Accepting the clock lets the farm remove old rows again.
    ("/pcfarm.v1.FarmService/AcceptClock", ADMINISTER),
    // Who may have how much.
    ("/pcfarm.v1.QueueService/SetLimits", ADMINISTER),
    ("/pcfarm.v1.QueueService/SetResource", ADMINISTER),
    ("/pcfarm.v1.QueueService/SetProfile", ADMINISTER),
    ("/pcfarm.v1.QueueService/DeleteProfile", ADMINISTER),
    ("/pcfarm.v1.QueueService/SetJobType", ADMINISTER),
    ("/pcfarm.v1.QueueService/DeleteJobType", ADMINISTER),
    ("/pcfarm.v1.QueueService/SetQuota", ADMINISTER),
    // The caller's own account and tokens, or, for administrators, anybody's.
    ("/pcfarm.v1.AccessService/Login", Need::Nothing),
    ("/pcfarm.v1.AccessService/Register", Need::Nothing),
    ("/pcfarm.v1.AccessService/WhoAmI", Need::Caller),
    ("/pcfarm.v1.AccessService/SetPassword", SUBMIT),
    ("/pcfarm.v1.AccessService/CreateToken", SUBMIT),
    ("/pcfarm.v1.AccessService/ListTokens", SUBMIT),
    ("/pcfarm.v1.AccessService/RevokeToken", SUBMIT),
    ("/pcfarm.v1.AccessService/CreateAccount", ADMINISTER),
    ("/pcfarm.v1.AccessService/SetAccount", ADMINISTER),
    ("/pcfarm.v1.AccessService/ListAccounts", ADMINISTER),
    ("/pcfarm.v1.AccessService/CreateJoinToken", ADMINISTER),
    ("/pcfarm.v1.AccessService/ListJoinTokens", ADMINISTER),
    ("/pcfarm.v1.AccessService/RevokeJoinToken", ADMINISTER),
    ("/pcfarm.v1.AccessService/ListCredentials", OPERATE),
    ("/pcfarm.v1.AccessService/RevokeCredential", OPERATE),
    // An agent brings its join token, and then a request that is signed with its key.
    ("/pcfarm.v1.JoinService/GetAuthority", Need::Nothing),
    ("/pcfarm.v1.JoinService/CheckJoinToken", Need::Nothing),
    ("/pcfarm.v1.JoinService/Join", Need::Nothing),
    ("/pcfarm.v1.JoinService/Renew", Need::Nothing),
    // Which programs watch, and which people look with.
    ("/grpc.health.v1.Health/Check", Need::Nothing),
    ("/grpc.health.v1.Health/Watch", Need::Nothing),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", SUBMIT),
];

/// By method and route, as the router has it. What a route asks of a service it needs as that method does.
pub const ROUTES: &[(&str, &str, Need)] = &[
    ("POST", "/api/v1/login", Need::Nothing),
    ("POST", "/api/v1/register", Need::Nothing),
    ("GET", "/api/v1/whoami", Need::Caller),
    ("GET", "/api/v1/accounts", ADMINISTER),
    ("GET", "/api/v1/accounts/{name}", ADMINISTER),
    ("POST", "/api/v1/accounts", ADMINISTER),
    ("PATCH", "/api/v1/accounts/{name}", ADMINISTER),
    ("PUT", "/api/v1/accounts/{name}/password", SUBMIT),
    ("GET", "/api/v1/tokens", SUBMIT),
    ("POST", "/api/v1/tokens", SUBMIT),
    ("DELETE", "/api/v1/tokens/{token_id}", SUBMIT),
    ("GET", "/api/v1/join-tokens", ADMINISTER),
    ("POST", "/api/v1/join-tokens", ADMINISTER),
    ("DELETE", "/api/v1/join-tokens/{join_token_id}", ADMINISTER),
    ("GET", "/api/v1/credentials", OPERATE),
    ("DELETE", "/api/v1/credentials/{identity}", OPERATE),
    // One's own files, unless one operates.
    ("GET", "/api/v1/files", SUBMIT),
    ("POST", "/api/v1/files", SUBMIT),
    ("GET", "/api/v1/files/{sha256}", SUBMIT),
    ("DELETE", "/api/v1/files/{sha256}", SUBMIT),
    ("GET", "/api/v1/jobs", SUBMIT),
    ("POST", "/api/v1/jobs", SUBMIT),
    ("GET", "/api/v1/jobs/{job_id}", SUBMIT),
    ("PATCH", "/api/v1/jobs/{job_id}", SUBMIT),
    ("POST", "/api/v1/jobs/{job_id}/open", SUBMIT),
    ("POST", "/api/v1/jobs/{job_id}/hold", SUBMIT),
    ("POST", "/api/v1/jobs/{job_id}/release", SUBMIT),
    ("POST", "/api/v1/jobs/{job_id}/cancel", SUBMIT),
    ("POST", "/api/v1/jobs/{job_id}/retry", SUBMIT),
    ("GET", "/api/v1/jobs/{job_id}/wait", SUBMIT),
    ("GET", "/api/v1/jobs/{job_id}/explain", SUBMIT),
    ("GET", "/api/v1/jobs/{job_id}/problems", SUBMIT),
    ("POST", "/api/v1/jobs/{job_id}/problems", SUBMIT),
    ("GET", "/api/v1/jobs/{job_id}/results", SUBMIT),
    ("GET", "/api/v1/schedules", SUBMIT),
    ("POST", "/api/v1/schedules", SUBMIT),
    ("GET", "/api/v1/schedules/{schedule_id}", SUBMIT),
    ("PATCH", "/api/v1/schedules/{schedule_id}", SUBMIT),
    ("DELETE", "/api/v1/schedules/{schedule_id}", SUBMIT),
    ("POST", "/api/v1/schedules/{schedule_id}/enable", SUBMIT),
    ("POST", "/api/v1/schedules/{schedule_id}/disable", SUBMIT),
    ("POST", "/api/v1/schedules/{schedule_id}/trigger", SUBMIT),
    ("GET", "/api/v1/schedules/{schedule_id}/triggers", SUBMIT),
    ("GET", "/api/v1/schedules/{schedule_id}/next", SUBMIT),
    ("POST", "/api/v1/submissions", SUBMIT),
    ("GET", "/api/v1/submissions", SUBMIT),
    ("GET", "/api/v1/submissions/{submission_id}", SUBMIT),
    ("GET", "/api/v1/submissions/{submission_id}/original", SUBMIT),
    ("GET", "/api/v1/subscriptions", SUBMIT),
    ("POST", "/api/v1/subscriptions", SUBMIT),
    ("DELETE", "/api/v1/subscriptions/{subscription_id}", SUBMIT),
    ("GET", "/api/v1/alerts", SUBMIT),
    ("POST", "/api/v1/alerts/{alert_id}/retry", SUBMIT),
    ("GET", "/api/v1/events", SUBMIT),
    ("GET", "/api/v1/events/stream", SUBMIT),
    ("GET", "/api/v1/statistics", SUBMIT),
    ("GET", "/api/v1/usage", SUBMIT),
    ("GET", "/api/v1/status", SUBMIT),
    ("GET", "/api/v1/clock", SUBMIT),
    ("POST", "/api/v1/clock/accept", ADMINISTER),
    ("GET", "/api/v1/users", SUBMIT),
    ("GET", "/api/v1/users/{name}", SUBMIT),
    ("GET", "/api/v1/users/{name}/quota", SUBMIT),
    ("GET", "/api/v1/limits", SUBMIT),
    ("GET", "/api/v1/resources", SUBMIT),
    ("GET", "/api/v1/resources/{name}", SUBMIT),
    ("GET", "/api/v1/profiles", SUBMIT),
    ("GET", "/api/v1/profiles/{profile_id}", SUBMIT),
    ("GET", "/api/v1/signals", SUBMIT),
    ("GET", "/api/v1/job-types", SUBMIT),
    ("GET", "/api/v1/job-types/{name}", SUBMIT),
    ("GET", "/api/v1/workstations", SUBMIT),
    ("GET", "/api/v1/workstations/{workstation_id}/explain", SUBMIT),
    ("GET", "/api/v1/slots", SUBMIT),
    ("GET", "/api/v1/hosts/{hostname}/selection", SUBMIT),
    ("GET", "/api/v1/hosts/{hostname}/presence", SUBMIT),
    ("GET", "/api/v1/queue/intake", SUBMIT),
    ("PUT", "/api/v1/workstations/{workstation_id}/drain", OPERATE),
    ("DELETE", "/api/v1/workstations/{workstation_id}/drain", OPERATE),
    ("POST", "/api/v1/workstations/drain", OPERATE),
    ("POST", "/api/v1/workstations/undrain", OPERATE),
    ("POST", "/api/v1/workstations/note", OPERATE),
    ("POST", "/api/v1/workstations/wake", OPERATE),
    ("POST", "/api/v1/workstations/forget", OPERATE),
    ("PATCH", "/api/v1/hosts/{hostname}/selection", OPERATE),
    ("PATCH", "/api/v1/hosts/{hostname}/presence", OPERATE),
    ("PUT", "/api/v1/hosts/{hostname}/slots/{name}", OPERATE),
    ("DELETE", "/api/v1/hosts/{hostname}/slots/{name}", OPERATE),
    ("PUT", "/api/v1/queue/suspension", OPERATE),
    ("DELETE", "/api/v1/queue/suspension", OPERATE),
    ("PUT", "/api/v1/job-types/{name}/suspension", OPERATE),
    ("DELETE", "/api/v1/job-types/{name}/suspension", OPERATE),
    ("POST", "/api/v1/queue/park", OPERATE),
    ("POST", "/api/v1/queue/unpark", OPERATE),
    ("PUT", "/api/v1/queue/intake", OPERATE),
    ("PUT", "/api/v1/signals/{name}", OPERATE),
    ("DELETE", "/api/v1/signals/{name}", OPERATE),
    ("PATCH", "/api/v1/users/{name}/limits", ADMINISTER),
    ("PATCH", "/api/v1/users/{name}/job-types/{job_type}/limits", ADMINISTER),
    ("PUT", "/api/v1/users/{name}/quota", ADMINISTER),
    ("PATCH", "/api/v1/limits", ADMINISTER),
    ("PUT", "/api/v1/resources/{name}", ADMINISTER),
    ("DELETE", "/api/v1/resources/{name}", ADMINISTER),
    ("POST", "/api/v1/profiles", ADMINISTER),
    ("PATCH", "/api/v1/profiles/{profile_id}", ADMINISTER),
    ("DELETE", "/api/v1/profiles/{profile_id}", ADMINISTER),
    ("PUT", "/api/v1/job-types/{name}", ADMINISTER),
    ("PATCH", "/api/v1/job-types/{name}", ADMINISTER),
    ("DELETE", "/api/v1/job-types/{name}", ADMINISTER),
];

/// What a gRPC method needs. None: there is no such method.
pub fn of_method(path: &str) -> Option<Need> {
    METHODS.iter().find(|(known, _)| *known == path).map(|(_, need)| *need)
}

/// What a route needs. None: there is no such route.
pub fn of_route(method: &str, route: &str) -> Option<Need> {
    ROUTES.iter().find(|(known_method, known, _)| *known_method == method && *known == route).map(|(_, _, need)| *need)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use prost_types::FileDescriptorSet;
    use std::collections::HashSet;

    fn methods_of(descriptors: &[u8]) -> Vec<String> {
        let files = FileDescriptorSet::decode(descriptors).expect("built with it").file;
        let of_file = |file: prost_types::FileDescriptorProto| {
            let package = file.package().to_owned();
            file.service.into_iter().flat_map(move |service| {
                let service_name = service.name().to_owned();
                let package = package.clone();
                service.method.into_iter().map(move |method| format!("/{package}.{service_name}/{}", method.name()))
            })
        };
        files.into_iter().flat_map(of_file).collect()
    }

    #[test]
    fn every_method_has_a_decision_and_nothing_else_has() {
        let mut served = methods_of(pcfarm_proto::DESCRIPTORS);
        served.extend(methods_of(tonic_health::pb::FILE_DESCRIPTOR_SET));
        served.push("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo".to_owned());
        assert!(served.len() > 40);
        for method in &served {
            assert!(of_method(method).is_some(), "{method} is not in the table: decide who may call it");
        }
        let served: HashSet<&str> = served.iter().map(String::as_str).collect();
        for (method, _) in METHODS {
            assert!(served.contains(method), "{method} is in the table, but no service has it");
        }
        assert_eq!(METHODS.iter().map(|(method, _)| method).collect::<HashSet<_>>().len(), METHODS.len());
    }

    #[test]
    fn what_nobody_has_decided_is_refused() {
        assert_eq!(of_method("/pcfarm.v1.JobService/Nothing"), None);
        assert_eq!(of_route("GET", "/api/v1/nothing"), None);
    }
}
