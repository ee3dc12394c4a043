//! The store in a bucket of S3, or of anything that speaks its protocol.

mod error;
mod keys;
mod listing;
mod sweep;
mod upload;

use std::{collections::HashMap, io, ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use aws_config::{BehaviorVersion, environment::EnvironmentVariableRegionProvider, meta::region::RegionProviderChain};
use aws_sdk_s3::{
    Client,
    config::{
        Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation, SharedHttpClient,
        timeout::TimeoutConfig,
    },
    primitives::ByteStream,
    types::{Object, ServerSideEncryption},
};
use aws_smithy_http_client::tls::{self, rustls_provider::CryptoMode};
use bytes::Bytes;
use futures_util::stream;
use jiff::Timestamp;
use tokio::sync::Semaphore;

use self::{
    error::failed,
    keys::{Keys, Named, named},
};
use crate::{
    Body, FileId, FileMeta, FileStore, ListRequest, Owner, Page, Staged, StoreError, Swept, Workspace, body::exactly,
};

/// Uploads at a time; each holds a part in memory. More wait. It is more than the server takes from clients, so that slow ones
/// never keep what commands leave behind waiting.
const UPLOADS_AT_ONCE: usize = 48;
/// Largest index object, in bytes. What is longer was not written by us.
const MOST_INDEX_BYTES: u64 = 64 * 1024;
/// Objects of one listing request: the most that stores give.
const MOST_LISTED: i32 = 1000;
/// What is signed for where nobody says a region.
const USUAL_REGION: &str = "us-east-1";
/// Where the bucket is, and how to come in.
#[derive(Clone, Debug, Default)]
pub struct S3Config {
    /// Name of the bucket, which has to exist.
    pub bucket: String,
    /// What the names of all objects begin with; empty: nothing.
    pub prefix: String,
    /// Region; `None`: that of the environment, or a usual one where an endpoint is given.
    pub region: Option<String>,
    /// Address of a store other than Amazon's, such as `http://127.0.0.1:8333`.
    pub endpoint: Option<String>,
    /// Whether the bucket stands in the path rather than in the host name.
    pub path_style: bool,
    /// How the store encrypts; `None`: as it is set up.
    pub encryption: Option<Encryption>,
    /// `None`: those of the environment: its variables, a role of the service account, a profile, or the machine's role.
    pub credentials: Option<StaticCredentials>,
    /// How long it may take.
    pub patience: Patience,
}

/// How long a store may take; a request that takes longer is sent again, twice at most.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a connection.
    pub connect: Duration,
    /// For one attempt at a request, its body sent.
    pub attempt: Duration,
    /// For the next byte of an answer.
    pub silence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), attempt: Duration::from_mins(1), silence: Duration::from_secs(30) }
    }
}

/// How the store encrypts what it is given.
#[derive(Clone, Debug)]
pub enum Encryption {
    /// By keys of the store.
    Aes256,
    /// By a key of its key service: this one, or the bucket's.
    Kms(Option<String>),
}

/// A key that does not change.
#[derive(Clone)]
pub struct StaticCredentials {
    /// Its id.
    pub access_key_id: String,
    /// The secret.
    pub secret_access_key: String,
}

impl std::fmt::Debug for StaticCredentials {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("StaticCredentials").finish_non_exhaustive()
    }
}

/// Files in a bucket. Cheap to clone.
#[derive(Clone)]
pub struct S3Store {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    bucket: String,
    keys: Keys,
    encryption: Option<Encryption>,
    uploads: Semaphore,
}

impl S3Store {
    /// The store in this bucket. Nothing is sent yet; [`FileStore::check`] tells whether it can be used.
    pub async fn new(config: S3Config) -> Self {
        let S3Config { bucket, prefix, region, endpoint, path_style, encryption, credentials, patience } = config;
        let http: SharedHttpClient =
            aws_smithy_http_client::Builder::new().tls_provider(tls::Provider::Rustls(CryptoMode::Ring)).build_https();
        let mut environment = aws_config::defaults(BehaviorVersion::latest()).http_client(http);
        if let Some(region) = region {
            environment = environment.region(Region::new(region));
        } else if endpoint.is_some() {
            // Elsewhere than at Amazon the region is a word for the signature, and no machine need be asked for it.
            let given = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new());
            environment = environment.region(given.or_else(Region::new(USUAL_REGION)));
        }
        if let Some(StaticCredentials { access_key_id, secret_access_key }) = credentials {
            let fixed = Credentials::new(access_key_id, secret_access_key, None, None, "static");
            environment = environment.credentials_provider(fixed);
        }
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(patience.connect)
            .read_timeout(patience.silence)
            .operation_attempt_timeout(patience.attempt)
            .build();
        let environment = environment.load().await;
        let mut s3 = aws_sdk_s3::config::Builder::from(&environment)
            .force_path_style(path_style)
            .timeout_config(timeouts)
            // The signature covers every byte already, and not every store knows the newer checksums.
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
        if environment.region().is_none() {
            s3 = s3.region(Region::new(USUAL_REGION));
        }
        s3.set_endpoint_url(endpoint.or_else(|| environment.endpoint_url().map(str::to_owned)));
        let client = Client::from_conf(s3.build());
        let uploads = Semaphore::new(UPLOADS_AT_ONCE);
        Self { inner: Arc::new(Inner { client, bucket, keys: Keys::new(&prefix), encryption, uploads }) }
    }
}

impl Inner {
    fn encryption(&self) -> (Option<ServerSideEncryption>, Option<String>) {
        match &self.encryption {
            None => (None, None),
            Some(Encryption::Aes256) => (Some(ServerSideEncryption::Aes256), None),
            Some(Encryption::Kms(key)) => (Some(ServerSideEncryption::AwsKms), key.clone()),
        }
    }

    /// Writes a short object.
    async fn write(&self, key: &str, content: Bytes) -> Result<(), StoreError> {
        let (encryption, kms_key) = self.encryption();
        let request = self.client.put_object().bucket(&self.bucket).key(key).body(ByteStream::from(content));
        let request = request.set_server_side_encryption(encryption).set_ssekms_key_id(kms_key);
        request.send().await.map(drop).map_err(|error| failed("writing an index object", error))
    }

    /// Removes an object; one that is not there is removed already.
    async fn remove(&self, key: &str) -> Result<(), StoreError> {
        match self.client.delete_object().bucket(&self.bucket).key(key).send().await {
            Ok(_) => Ok(()),
            Err(error) => match failed("removing an object", error) {
                StoreError::NotFound => Ok(()),
                error => Err(error),
            },
        }
    }

    async fn abort(&self, key: &str, upload: &str) -> Result<(), StoreError> {
        let request = self.client.abort_multipart_upload().bucket(&self.bucket).key(key).upload_id(upload);
        match request.send().await {
            Ok(_) => Ok(()),
            Err(error) => match failed("ending an upload", error) {
                StoreError::NotFound => Ok(()),
                error => Err(error),
            },
        }
    }

    /// At most so many objects whose names begin so and come after another, and whether there are more.
    async fn some(&self, prefix: &str, after: Option<String>, limit: i32) -> Result<(Vec<Object>, bool), StoreError> {
        let request = self.client.list_objects_v2().bucket(&self.bucket).prefix(prefix).set_start_after(after);
        let listed = request.max_keys(limit).send().await.map_err(|error| failed("listing objects", error))?;
        let more = listed.is_truncated.unwrap_or_default();
        Ok((listed.contents.unwrap_or_default(), more))
    }

    /// Every object whose name begins so.
    async fn each(&self, prefix: &str, mut see: impl FnMut(Object)) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let (objects, more) = self.some(prefix, after, MOST_LISTED).await?;
            after = objects.last().and_then(|object| object.key().map(str::to_owned));
            objects.into_iter().for_each(&mut see);
            if !more || after.is_none() {
                return Ok(());
            }
        }
    }

    /// The folders right below one.
    async fn folders(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let request = self.client.list_objects_v2().bucket(&self.bucket).prefix(prefix).delimiter("/");
        let mut pages = request.into_paginator().send();
        let mut folders = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| failed("listing folders", error))?;
            folders.extend(page.common_prefixes().iter().filter_map(|folder| folder.prefix().map(str::to_owned)));
        }
        Ok(folders)
    }

    /// The name of a file's index object.
    async fn index_key(&self, workspace: &str, id: FileId) -> Result<String, StoreError> {
        let (objects, _) = self.some(&self.keys.index_of(workspace, id), None, 1).await?;
        objects.into_iter().next().and_then(|object| object.key).ok_or(StoreError::NotFound)
    }

    async fn read_index(&self, key: &str) -> Result<FileMeta, StoreError> {
        let doing = "reading an index object";
        let got = self.client.get_object().bucket(&self.bucket).key(key).send().await;
        let got = got.map_err(|error| failed(doing, error))?;
        if got.content_length.is_some_and(|length| u64::try_from(length).unwrap_or(u64::MAX) > MOST_INDEX_BYTES) {
            return Err(StoreError::Io { doing, source: io::ErrorKind::InvalidData.into() });
        }
        let json = got.body.collect().await.map_err(|error| StoreError::Unavailable { doing, source: error.into() })?;
        serde_json::from_slice(&json.into_bytes()).map_err(|error| StoreError::Io { doing, source: error.into() })
    }
}

#[async_trait]
impl FileStore for S3Store {
    async fn stage(
        &self,
        workspace: &Workspace,
        id: FileId,
        body: Body<'_>,
        limit: u64,
    ) -> Result<Box<dyn Staged>, StoreError> {
        // It is never closed.
        let _turn = self.inner.uploads.acquire().await;
        Ok(Box::new(upload::stage(&self.inner, workspace, id, body, limit).await?))
    }

    async fn stat(&self, workspace: &Workspace, id: FileId) -> Result<FileMeta, StoreError> {
        self.inner.read_index(&self.inner.index_key(workspace.key(), id).await?).await
    }

    async fn read(
        &self,
        workspace: &Workspace,
        meta: &FileMeta,
        range: Range<u64>,
    ) -> Result<Body<'static>, StoreError> {
        let Range { start, end } = range;
        if start >= end {
            return Ok(Box::pin(stream::empty()));
        }
        let Inner { client, bucket, keys, .. } = &*self.inner;
        let request = client.get_object().bucket(bucket).key(keys.content(workspace.key(), meta.id));
        let got = request.range(format!("bytes={start}-{}", end - 1)).send().await;
        let got = got.map_err(|error| failed("opening a file", error))?;
        let body = stream::try_unfold(got.body, |mut body| async {
            let piece = body.next().await.transpose().map_err(io::Error::other)?;
            Ok(piece.map(|piece| (piece, body)))
        });
        Ok(exactly(end - start, Box::pin(body)))
    }

    async fn delete(&self, workspace: &Workspace, id: FileId) -> Result<(), StoreError> {
        let inner = &self.inner;
        let index = inner.index_key(workspace.key(), id).await?;
        let expires_at = match named(&index) {
            Named::Summary(summary, _) => summary.expires_at,
            // An entry that cannot be read can still be deleted.
            Named::Elsewhere(_) => inner.read_index(&index).await.ok().and_then(|meta| meta.expires_at),
            Named::Foreign => None,
        };
        // From then on the file does not exist, whatever happens to the rest.
        inner.remove(&index).await?;
        inner.remove(&inner.keys.content(workspace.key(), id)).await?;
        match expires_at {
            Some(at) => inner.remove(&inner.keys.expiry_mark(workspace, id, at)).await,
            None => Ok(()),
        }
    }

    async fn list(&self, workspace: &Workspace, request: &ListRequest) -> Result<Page, StoreError> {
        let ListRequest { after, before, limit } = *request;
        match before {
            None => self.inner.older(workspace.key(), after, limit).await,
            Some(before) => self.inner.newer(workspace.key(), after, before, limit).await,
        }
    }

    async fn usage(&self, workspace: &Workspace) -> Result<u64, StoreError> {
        let mut bytes = 0_u64;
        let add = |object: Object| bytes += object.size.and_then(|size| u64::try_from(size).ok()).unwrap_or_default();
        self.inner.each(&self.inner.keys.contents(workspace.key()), add).await?;
        Ok(bytes)
    }

    async fn usage_by_owner(&self, workspace: &Workspace) -> Result<HashMap<Owner, u64>, StoreError> {
        self.inner.sizes_by_owner(workspace.key()).await
    }

    async fn sweep(&self, now: Timestamp) -> Result<Swept, StoreError> {
        sweep::sweep(&self.inner, now).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        let looked = self.inner.some(&self.inner.keys.root(), None, 1).await;
        match looked {
            Ok(_) => Ok(()),
            Err(StoreError::NotFound) => {
                Err(StoreError::Io { doing: "the bucket does not exist", source: io::ErrorKind::NotFound.into() })
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_s3::presigning::PresigningConfig;

    use super::*;

    #[tokio::test]
    async fn the_bucket_stands_in_the_host_or_in_the_path() {
        let uri = async |path_style, endpoint: Option<&str>| {
            let credentials = StaticCredentials { access_key_id: "AK".into(), secret_access_key: "SK".into() };
            let store = S3Store::new(S3Config {
                bucket: "files".into(),
                region: Some("eu-west-1".into()),
                endpoint: endpoint.map(str::to_owned),
                path_style,
                credentials: Some(credentials),
                ..S3Config::default()
            });
            let signed = PresigningConfig::expires_in(Duration::from_mins(1)).unwrap();
            let request = store.await.inner.client.get_object().bucket("files").key("k").presigned(signed).await;
            request.unwrap().uri().split('?').next().unwrap().to_owned()
        };
        assert_eq!(uri(false, None).await, "https://files.s3.eu-west-1.amazonaws.com/k");
        assert_eq!(uri(true, None).await, "https://s3.eu-west-1.amazonaws.com/files/k");
        assert_eq!(uri(false, Some("http://s3.example:8333")).await, "http://files.s3.example:8333/k");
        assert_eq!(uri(true, Some("http://s3.example:8333")).await, "http://s3.example:8333/files/k");
    }
}
