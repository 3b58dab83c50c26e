//! Somebody who speaks HTTP with a farm.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use ureq::http::{Method, Request};

use super::Farm;

pub const PASSWORD: &str = "correct horse battery staple";

/// Somebody who sends requests.
#[derive(Clone)]
pub struct Client {
    pub base: String,
    pub token: Option<String>,
    pub agent: ureq::Agent,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("{}: {}", self.status, self.text()))
    }

    pub fn is(self, status: u16) -> Result<Answer> {
        ensure!(self.status == status, "{status} expected: {} {}", self.status, self.text());
        if status >= 400 {
            // RFC 9457, whatever was wrong.
            ensure!(self.header("content-type") == Some("application/problem+json"), "{self:?}");
            let details = self.json()?;
            ensure!(details["status"] == status && details["detail"].is_string() && details["type"].is_string());
        }
        Ok(self)
    }

    /// The field at fault.
    pub fn field(&self) -> Result<String> {
        Ok(self.json()?["errors"][0]["field"].as_str().unwrap_or_default().to_owned())
    }
}

impl Client {
    pub fn of(farm: &Farm) -> Client {
        let agent = ureq::Agent::config_builder().http_status_as_error(false).allow_non_standard_methods(true).build();
        Client { base: farm.rest.clone(), token: None, agent: agent.new_agent() }
    }

    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> Result<Answer> {
        let client = self.clone();
        let mut request =
            Request::builder().method(Method::from_bytes(method.as_bytes())?).uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        // ureq blocks.
        tokio::task::spawn_blocking(move || {
            let mut response = match body {
                Some(body) => client.agent.run(request.body(body)?)?,
                None => client.agent.run(request.body(())?)?,
            };
            let headers = response.headers().iter();
            let headers = headers
                .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into()))
                .collect();
            let status = response.status().as_u16();
            let body = response.body_mut().with_config().limit(1 << 30).read_to_vec()?;
            Ok(Answer { status, headers, body })
        })
        .await?
    }

    /// The same, as somebody.
    pub async fn login(&self, user: &str) -> Result<Client> {
        let form = json!({"user": user, "password": PASSWORD});
        let made = self.json("POST", "/api/v1/login", form).await?.is(201)?.json()?;
        Ok(self.with_token(text(&made, "secret")?))
    }

    pub fn with_token(&self, token: String) -> Client {
        Client { token: Some(token), ..self.clone() }
    }

    pub async fn get(&self, path: &str) -> Result<Answer> {
        self.send("GET", path, &[], None).await
    }

    pub async fn json(&self, method: &str, path: &str, body: Value) -> Result<Answer> {
        self.send(method, path, &[("content-type", "application/json")], Some(body.to_string().into())).await
    }

    pub async fn post(&self, path: &str, media: &str, body: impl Into<Vec<u8>>) -> Result<Answer> {
        self.send("POST", path, &[("content-type", media)], Some(body.into())).await
    }

    /// A change of one version.
    pub async fn change(&self, method: &str, path: &str, tag: &str, body: Value) -> Result<Answer> {
        let headers = [("content-type", "application/json"), ("if-match", tag)];
        self.send(method, path, &headers, Some(body.to_string().into())).await
    }

    /// The version of what is there.
    pub async fn tag(&self, path: &str) -> Result<String> {
        Ok(self.get(path).await?.is(200)?.header("etag").context("an ETag")?.to_owned())
    }

    /// Without a body.
    pub async fn act(&self, path: &str) -> Result<Answer> {
        self.send("POST", path, &[], Some(Vec::new())).await
    }
}

pub fn text(value: &Value, name: &str) -> Result<String> {
    Ok(value[name].as_str().with_context(|| format!("{name} of {value}"))?.to_owned())
}
