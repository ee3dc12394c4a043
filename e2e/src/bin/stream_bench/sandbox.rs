//! The sandbox that is measured, through the same code as the API server's.

use anyhow::{Context as _, bail, ensure};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, Resource as _, api::AttachParams, core::Request};
use sandbox_runtime::{
    CellStep, ContainerKey, ContainerKind, ContainerSpec, Limits, RunKind, RunRequest, Sandbox, Sandboxes,
    kubernetes::{KubernetesConfig, KubernetesRuntime},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::process::Command;

const START: Duration = Duration::from_mins(2);

pub(crate) struct Subject {
    namespace: String,
    spec: ContainerSpec,
    sandboxes: Sandboxes,
    sandbox: Sandbox,
    client: Client,
}

impl Subject {
    pub(crate) async fn new(namespace: &str) -> anyhow::Result<Self> {
        let key = ContainerKey { kind: ContainerKind::Explicit, workspace: "bench", user: None, id: "stream-bench" };
        let lifetime = Some(Duration::from_hours(1));
        Self::connect(namespace, ContainerSpec { name: key.name(), owner: key.owner(), lifetime }).await
    }

    async fn connect(namespace: &str, spec: ContainerSpec) -> anyhow::Result<Self> {
        let config = KubernetesConfig { namespace: namespace.to_owned(), template: None };
        let sandboxes = Sandboxes::new(Arc::new(KubernetesRuntime::new(config).await?));
        let sandbox = sandboxes.acquire(&spec, START).await?;
        Ok(Self { namespace: namespace.to_owned(), spec, sandboxes, sandbox, client: Client::try_default().await? })
    }

    /// The same sandbox, with no stream open to it yet.
    pub(crate) async fn with_new_streams(&self) -> anyhow::Result<Self> {
        Self::connect(&self.namespace, self.spec.clone()).await
    }

    pub(crate) async fn close_streams(&self) {
        self.sandboxes.shut_down().await;
    }

    pub(crate) fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Runs a cell, whose value is printed.
    pub(crate) async fn cell(&self, id: &str, code: &str, value: &str) -> anyhow::Result<()> {
        let run = RunKind::Cell { code: code.to_owned(), tools: Vec::new() };
        let CellStep::Finished(outcome) = self.sandbox.cell(id, &RunRequest { run, ..bash("") }).await? else {
            bail!("{code} called a tool");
        };
        ensure!(outcome.stdout == value, "{code}: {}", String::from_utf8_lossy(&outcome.stderr));
        Ok(())
    }

    pub(crate) async fn run(&self, id: &str, command: &str) -> anyhow::Result<()> {
        self.output(id, command).await.map(drop)
    }

    /// What a command prints.
    pub(crate) async fn output(&self, id: &str, command: &str) -> anyhow::Result<String> {
        let outcome = self.sandbox.run(id, &bash(command)).await?;
        ensure!(outcome.exit.code == 0, "{command}: {}", String::from_utf8_lossy(&outcome.stderr));
        Ok(String::from_utf8_lossy(&outcome.stdout).into_owned())
    }

    /// Name of its pod: a Sandbox and its pod share the beginning of their names.
    pub(crate) async fn pod(&self) -> anyhow::Result<String> {
        let path = "jsonpath={.status.binding.podName}";
        let name = self.kubectl_output(&["get", "sandbox", self.spec.name.as_str(), "-o", path]).await?;
        ensure!(!name.is_empty(), "the sandbox has no pod");
        Ok(name)
    }

    /// A bare exec of `true` by this program, until it has ended.
    pub(crate) async fn exec(&self, pod: &str) -> anyhow::Result<()> {
        let params = AttachParams::default().container("main").stderr(false);
        let request = Request::new(Pod::url_path(&(), Some(&self.namespace))).exec(pod, ["true"], &params)?;
        let mut socket = self.client.connect(request).await?.into_stream();
        while let Some(message) = socket.next().await {
            if message?.is_close() {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command.args(["-n", &self.namespace]).args(arguments);
        command
    }

    pub(crate) async fn kubectl_output(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.kubectl(arguments).output().await.context("starting kubectl")?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    pub(crate) async fn delete(self) -> anyhow::Result<()> {
        self.close_streams().await;
        self.kubectl_output(&["delete", "sandbox", self.spec.name.as_str()]).await.map(drop)
    }
}

pub(crate) fn bash(command: &str) -> RunRequest {
    let run = RunKind::Bash { command: command.to_owned(), restart: false };
    RunRequest { run, env: BTreeMap::new(), limits: Limits { timeout_ms: 120_000, output_bytes: 1 << 20 } }
}

/// A process of this machine whose highest memory is looked at.
pub(crate) struct Memory {
    pid: String,
    resting: u64,
}

impl Memory {
    /// This one.
    pub(crate) fn of_this_program() -> anyhow::Result<Self> {
        Self::of("self".to_owned())
    }

    /// The `sandboxd` that serves the files of a pod, if the pod's node is this machine.
    pub(crate) fn of_files(pod_uid: &str) -> anyhow::Result<Option<Self>> {
        let is_it = |pid: &str| {
            let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let groups = String::from_utf8_lossy(&read("cgroup")).replace('_', "-");
            read("cmdline").windows(12).any(|words| words == b"--half\0files") && groups.contains(pod_uid)
        };
        let names = std::fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names
            .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
            .find(|pid| is_it(pid))
            .map(Self::of)
            .transpose()
    }

    /// From now on.
    fn of(pid: String) -> anyhow::Result<Self> {
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5")?;
        let memory = Self { pid, resting: 0 };
        Ok(Self { resting: memory.peak()?, ..memory })
    }

    /// The highest since then, in bytes.
    fn peak(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        let kib: u64 = line.split_whitespace().next().context("no number")?.parse()?;
        Ok(kib * 1024)
    }

    /// How much more it was than at rest, in bytes.
    pub(crate) fn growth(&self) -> anyhow::Result<u64> {
        Ok(self.peak()?.saturating_sub(self.resting))
    }
}
