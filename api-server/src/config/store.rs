//! Where stored files are kept.

use clap::{Args, ValueEnum};
use file_store::{Encryption, FileStore, FolderStore, Patience, S3Config, S3Store, StoreError, Totals};
use std::{path::Path, sync::Arc};

/// The file store and its limits. Credentials of a bucket come from the environment, as every AWS tool reads them: variables, a role
/// of the service account, a profile.
#[derive(Args, Clone, Debug)]
pub struct StoreSettings {
    /// Where stored files are kept: `folder` in the data folder, or `s3` in a bucket.
    #[arg(long, env = "CODEEXEC_STORE", value_enum, default_value_t = StoreKind::Folder)]
    pub store: StoreKind,

    /// Bytes that the stored files of one workspace may take together.
    #[arg(long, env = "CODEEXEC_WORKSPACE_STORAGE", default_value_t = 1_000_000_000_000)]
    pub workspace_storage: u64,

    /// Bytes that the files which one user stored may take together. Without it only the workspace's total counts.
    #[arg(long, env = "CODEEXEC_USER_STORAGE")]
    pub user_storage: Option<u64>,

    /// Name of the bucket (store `s3`).
    #[arg(long, env = "CODEEXEC_S3_BUCKET", required_if_eq("store", "s3"))]
    pub s3_bucket: Option<String>,

    /// What the names of all objects in the bucket begin with.
    #[arg(long, env = "CODEEXEC_S3_PREFIX", default_value = "")]
    pub s3_prefix: String,

    /// Region of the bucket; without it that of the environment.
    #[arg(long, env = "CODEEXEC_S3_REGION")]
    pub s3_region: Option<String>,

    /// Address of a store other than Amazon's, such as `http://seaweedfs:8333`.
    #[arg(long, env = "CODEEXEC_S3_ENDPOINT")]
    pub s3_endpoint: Option<String>,

    /// The bucket stands in the path of a request rather than in its host name.
    #[arg(long, env = "CODEEXEC_S3_PATH_STYLE")]
    pub s3_path_style: bool,

    /// How the bucket's store encrypts; without it as it is set up.
    #[arg(long, env = "CODEEXEC_S3_ENCRYPTION", value_enum)]
    pub s3_encryption: Option<EncryptionKind>,

    /// Key of the encryption `kms`; without it the bucket's.
    #[arg(long, env = "CODEEXEC_S3_KMS_KEY")]
    pub s3_kms_key: Option<String>,
}

/// Where stored files are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    /// In the data folder.
    Folder,
    /// In a bucket.
    S3,
}

/// How a bucket's store encrypts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EncryptionKind {
    /// By keys of the store.
    Aes256,
    /// By a key of its key service.
    Kms,
}

impl StoreSettings {
    /// Opens the store; a folder lies in the data folder.
    pub async fn open(&self, data_dir: &Path) -> Result<Arc<dyn FileStore>, StoreError> {
        Ok(match self.store {
            StoreKind::Folder => Arc::new(FolderStore::new(&data_dir.join("files")).await?),
            StoreKind::S3 => Arc::new(S3Store::new(self.s3()).await),
        })
    }

    /// What files may take together.
    pub fn totals(&self) -> Totals {
        Totals { workspace: self.workspace_storage, user: self.user_storage }
    }

    fn s3(&self) -> S3Config {
        S3Config {
            bucket: self.s3_bucket.clone().unwrap_or_default(),
            prefix: self.s3_prefix.clone(),
            region: self.s3_region.clone(),
            endpoint: self.s3_endpoint.clone(),
            path_style: self.s3_path_style,
            encryption: self.s3_encryption.map(|kind| match kind {
                EncryptionKind::Aes256 => Encryption::Aes256,
                EncryptionKind::Kms => Encryption::Kms(self.s3_kms_key.clone()),
            }),
            credentials: None,
            patience: Patience::default(),
        }
    }
}
