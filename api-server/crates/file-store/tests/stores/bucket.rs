//! A bucket in memory. Its names may be as long as those of S3, which a bucket on a file system does not offer.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::SystemTime,
};

use bytes::Bytes;
use futures_util::TryStreamExt;
use s3s::{Body, S3, S3Request, S3Response, S3Result, dto::*, s3_error};

pub(crate) const BUCKET: &str = "files";

/// Objects and unfinished uploads.
#[derive(Clone, Default)]
pub(crate) struct Bucket(Arc<Mutex<Held>>);

#[derive(Default)]
struct Held {
    objects: BTreeMap<String, Bytes>,
    /// Key and parts, by the upload's id.
    uploads: BTreeMap<String, (String, BTreeMap<i32, Bytes>)>,
}

impl Bucket {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap()
    }

    /// The names of all objects, and of what unfinished uploads are to become.
    pub(crate) fn left(&self) -> Vec<String> {
        let held = self.held();
        held.objects.keys().cloned().chain(held.uploads.values().map(|(key, _)| format!("unfinished {key}"))).collect()
    }

    pub(crate) fn remove(&self, key: &str) {
        self.held().objects.remove(key).unwrap();
    }

    pub(crate) fn insert(&self, key: &str, content: &'static [u8]) {
        self.insert_all([(key.to_owned(), Bytes::from_static(content))]);
    }

    pub(crate) fn insert_all(&self, objects: impl IntoIterator<Item = (String, Bytes)>) {
        self.held().objects.extend(objects);
    }

    fn store(&self, key: String, content: Bytes, condition: Option<&ETagCondition>) -> S3Result<()> {
        let mut held = self.held();
        if condition.is_some_and(ETagCondition::is_any) && held.objects.contains_key(&key) {
            return Err(s3_error!(PreconditionFailed));
        }
        held.objects.insert(key, content);
        Ok(())
    }
}

async fn whole(body: Option<StreamingBlob>) -> S3Result<Bytes> {
    let pieces: Vec<Bytes> = body.unwrap().try_collect().await.map_err(|_| s3_error!(IncompleteBody))?;
    Ok(pieces.concat().into())
}

#[async_trait::async_trait]
impl S3 for Bucket {
    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let PutObjectInput { key, body, if_none_match, .. } = req.input;
        let content = whole(body).await?;
        self.store(key, content, if_none_match.as_ref())?;
        Ok(S3Response::new(PutObjectOutput::default()))
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let GetObjectInput { key, range, .. } = req.input;
        let content = self.held().objects.get(&key).cloned().ok_or_else(|| s3_error!(NoSuchKey))?;
        let size = content.len() as u64;
        let part = range.map_or(Ok(0..size), |range| range.check(size))?;
        let bounds = usize::try_from(part.start).unwrap()..usize::try_from(part.end).unwrap();
        let content_range = range.map(|_| format!("bytes {}-{}/{size}", part.start, part.end - 1));
        let content_length = i64::try_from(part.end - part.start).ok();
        let body = Some(StreamingBlob::from(Body::from(content.slice(bounds))));
        Ok(S3Response::new(GetObjectOutput { body, content_length, content_range, ..Default::default() }))
    }

    async fn delete_object(&self, req: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.held().objects.remove(&req.input.key);
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn list_objects_v2(&self, req: S3Request<ListObjectsV2Input>) -> S3Result<S3Response<ListObjectsV2Output>> {
        let ListObjectsV2Input { bucket, prefix, start_after, continuation_token, delimiter, max_keys, .. } = req.input;
        if bucket != BUCKET {
            return Err(s3_error!(NoSuchBucket));
        }
        let (prefix, start) = (prefix.unwrap_or_default(), continuation_token.or(start_after).unwrap_or_default());
        let most = usize::try_from(max_keys.unwrap_or(1000)).unwrap().min(1000);
        let (mut contents, mut folders) = (Vec::new(), Vec::new());
        let mut more = false;
        let mut last = String::new();
        for (key, content) in self
            .held()
            .objects
            .range(prefix.clone().max(start.clone())..)
            .take_while(|(key, _)| key.starts_with(&prefix))
        {
            let folder = delimiter.as_ref().and_then(|end| {
                let (folder, _) = key[prefix.len()..].split_once(end.as_str())?;
                Some(format!("{prefix}{folder}{end}"))
            });
            if *key <= start || folder.as_ref().is_some_and(|folder| folders.contains(folder) || *folder <= start) {
                continue;
            }
            if contents.len() + folders.len() == most {
                more = true;
                break;
            }
            last = folder.clone().unwrap_or_else(|| key.clone());
            match folder {
                Some(folder) => folders.push(folder),
                None => contents.push(Object {
                    key: Some(key.clone()),
                    size: i64::try_from(content.len()).ok(),
                    last_modified: Some(SystemTime::now().into()),
                    ..Default::default()
                }),
            }
        }
        Ok(S3Response::new(ListObjectsV2Output {
            contents: Some(contents),
            common_prefixes: Some(folders.into_iter().map(|prefix| CommonPrefix { prefix: Some(prefix) }).collect()),
            is_truncated: Some(more),
            next_continuation_token: more.then_some(last),
            ..Default::default()
        }))
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let mut held = self.held();
        let id = format!("upload-{}", held.uploads.len());
        held.uploads.insert(id.clone(), (req.input.key, BTreeMap::new()));
        Ok(S3Response::new(CreateMultipartUploadOutput { upload_id: Some(id), ..Default::default() }))
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        let UploadPartInput { upload_id, part_number, body, .. } = req.input;
        let part = whole(body).await?;
        let mut held = self.held();
        let (_, parts) = held.uploads.get_mut(&upload_id).ok_or_else(|| s3_error!(NoSuchUpload))?;
        parts.insert(part_number, part);
        Ok(S3Response::new(UploadPartOutput {
            e_tag: Some(ETag::Strong(part_number.to_string())),
            ..Default::default()
        }))
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let CompleteMultipartUploadInput { upload_id, multipart_upload, if_none_match, .. } = req.input;
        let named: Vec<_> =
            multipart_upload.unwrap().parts.unwrap().into_iter().filter_map(|part| part.part_number).collect();
        let (key, parts) = self.held().uploads.remove(&upload_id).ok_or_else(|| s3_error!(NoSuchUpload))?;
        assert_eq!(named, parts.keys().copied().collect::<Vec<_>>());
        let pieces: Vec<Bytes> = parts.into_values().collect();
        let (_, whole) = pieces.split_last().unwrap();
        assert!(whole.iter().all(|part| part.len() >= 5 << 20), "each part but the last has 5 MiB");
        self.store(key, pieces.concat().into(), if_none_match.as_ref())?;
        Ok(S3Response::new(CompleteMultipartUploadOutput::default()))
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.held().uploads.remove(&req.input.upload_id);
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    async fn list_multipart_uploads(
        &self,
        _: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let upload = |(id, (key, _)): (&String, &(String, BTreeMap<i32, Bytes>))| MultipartUpload {
            key: Some(key.clone()),
            upload_id: Some(id.clone()),
            initiated: Some(SystemTime::now().into()),
            ..Default::default()
        };
        let uploads = self.held().uploads.iter().map(upload).collect();
        Ok(S3Response::new(ListMultipartUploadsOutput { uploads: Some(uploads), ..Default::default() }))
    }
}
