"""A bucket of S3, or of a store that speaks like it: boto3 brings files there."""

import base64
import mimetypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from torchmill.core import urls
from torchmill.core.errors import ConfigError, DeliveryError, NetworkError, require_package
from torchmill.deliver.publish.upload_set import PublishTarget, StoredFile, UploadFile, digest_parts

_ABSENT = {"404", "NoSuchKey", "NotFound", "NoSuchBucket"}
_TAKEN = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}


@dataclass(frozen=True, slots=True)
class BucketTarget(PublishTarget):
    """A bucket, and what all names in it begin with."""

    bucket: str
    prefix: str  # "" or "wheels/"
    # of one upload (https://docs.aws.amazon.com/AmazonS3/latest/userguide/upload-objects.html)
    size_limit: ClassVar[int] = 5 * 2**30
    client: Any  # of boto3, which finds its credentials and AWS_ENDPOINT_URL by itself

    @classmethod
    def from_address(cls, bucket: str, path: str) -> Self:
        """Return a bucket. Raises HostError where boto3 is missing, ConfigError where its settings are wrong."""
        with require_package("uploading to a bucket", "boto3", "boto3-missing"):
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        prefix = path.strip("/")
        try:  # no multiple requests of its own accord: with a condition, the second would find the first one's file
            client = boto3.client("s3", config=Config(retries={"total_max_attempts": 1}))
        except (BotoCoreError, ValueError) as error:
            why = f"s3://{bucket}: {urls.hide_password(str(error))}: correct AWS_ENDPOINT_URL, AWS_PROFILE or ~/.aws"
            raise ConfigError(why, code="invalid-target") from None
        return cls(bucket, f"{prefix}/" if prefix else "", client)

    @property
    def name(self) -> str:
        """Return its address."""
        return f"s3://{self.bucket}/{self.prefix}"

    def existing_digests(self, files: Sequence[UploadFile]) -> Mapping[str, str]:
        """Return the sha256 of the files that it has: S3 keeps it since it was uploaded, else it is read."""
        self._call(self.client.head_bucket, Bucket=self.bucket)
        digests = {file.name: self._digest(self.prefix + file.name) for file in files}
        return {name: digest for name, digest in digests.items() if digest}

    def _digest(self, key: str) -> str:
        """Return the sha256 of an object; "" where there is none."""
        answer = self._call(
            self.client.head_object, {}, Bucket=self.bucket, Key=key, ChecksumMode="ENABLED"
        )
        kept = answer.get("ChecksumSHA256", "")
        if kept and "-" not in kept:  # that of an upload in parts is no digest of the file
            return base64.b64decode(kept).hex()
        return digest_parts(self._body(key))[0] if answer else ""

    def _body(self, key: str) -> Iterator[bytes]:
        body = self._call(self.client.get_object, Bucket=self.bucket, Key=key)["Body"]
        return iter(partial(self._call, body.read, amt=1 << 20), b"")

    def stored_files(self) -> Iterator[StoredFile]:
        """Yield the files that it has, without those of deeper prefixes."""
        for key in self.list_keys():
            if "/" not in (name := key.removeprefix(self.prefix)):
                remove = partial(self._call, self.client.delete_object, Bucket=self.bucket, Key=key)
                yield StoredFile(name, partial(self._digest, key), partial(self._body, key), remove)

    def list_keys(self) -> Iterator[str]:
        """Yield the keys of all objects below the prefix."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=self.prefix
        )
        for page in self._call(lambda: list(pages)):
            yield from (one["Key"] for one in page.get("Contents", ()))

    def signed_url(self, key: str, suffix: str = "") -> str:
        """Return an address from which the object of a key and suffix may be read for an hour."""
        where = {"Bucket": self.bucket, "Key": key + suffix}
        return str(self.client.generate_presigned_url("get_object", Params=where))

    def upload(self, file: UploadFile) -> None:
        """Upload a file, on the condition that there is none of its name; S3 checks its digest."""
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        with file.path.open("rb") as body:
            self._call(
                self.client.put_object,
                Bucket=self.bucket,
                Key=self.prefix + file.name,
                Body=body,
                ContentLength=file.size,
                ContentType=kind,
                ChecksumAlgorithm="SHA256",
                ChecksumSHA256=base64.b64encode(bytes.fromhex(file.sha256)).decode(),
                IfNoneMatch="*",
            )

    def _call(self, verb: Callable[..., Any], absent: Any = None, **parameters: Any) -> Any:
        """Call S3; returns `absent`, if that is given, where there is no such object."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return verb(**parameters)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if absent is not None and code in _ABSENT:
                return absent
            raise self._refused(code, error.response, parameters.get("Key", "")) from None
        except BotoCoreError as error:
            words = urls.hide_password(str(error).partition("\n")[0])
            raise NetworkError(
                f"{self.name} cannot be reached ({words}): boto3 takes AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
                "AWS_REGION, AWS_ENDPOINT_URL and ~/.aws; run the command again to go on",
                code="host-unreachable",
            ) from None

    def _refused(self, code: str, response: Mapping[str, Any], key: str) -> DeliveryError:
        if code in _TAKEN:
            return DeliveryError(
                f"s3://{self.bucket}/{key} has appeared in the meantime: run the command again",
                code="file-appeared",
            )
        if not key and code in _ABSENT:
            return DeliveryError(
                f"{self.name} does not exist: create the bucket, or name another", code="no-bucket"
            )
        message = response.get("Error", {}).get("Message") or code
        return DeliveryError(
            f"{self.name} refuses {key or 'these keys'} ({message}): they need s3:ListBucket, "
            "s3:GetObject, s3:PutObject and, for --keep, s3:DeleteObject",
            code="upload-refused",
        )
