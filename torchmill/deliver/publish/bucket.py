"""A bucket of S3, or of a store with the same interface, as a target; boto3 uploads the files.

A bucket has objects, each with a key: a target's prefix, such as "wheels/", and the file's name.
"""

import base64
import mimetypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from torchmill.core import retries, urls
from torchmill.core.errors import ConfigError, DeliveryError, NetworkError
from torchmill.core.optional_libraries import require_library
from torchmill.deliver.publish.upload_set import PublishTarget, StoredFile, UploadFile, digest_parts
from torchmill.fetch.http_failures import LASTING_CONNECTION, is_passing_status

# The codes of an error, as S3 and its imitations write them.
_ABSENT = {"404", "NoSuchKey", "NotFound", "NoSuchBucket"}
# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
_PASSING_CODES = {"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable"}
_TAKEN = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BucketTarget(PublishTarget):
    """A bucket, and the prefix of all keys in it."""

    bucket: str
    prefix: str  # "" or "wheels/"
    takes_documents: ClassVar[bool] = True
    removes_files: ClassVar[bool] = True
    # of one upload (https://docs.aws.amazon.com/AmazonS3/latest/userguide/upload-objects.html)
    size_limit: ClassVar[int] = 5 * 2**30
    client: Any  # of boto3, which finds its credentials and AWS_ENDPOINT_URL by itself

    @classmethod
    def from_address(cls, bucket: str, path: str) -> Self:
        """Return the target of "s3://BUCKET/PATH".

        Raises HostError if boto3 is missing, ConfigError if its settings are wrong.
        """
        with require_library("boto3"):
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        prefix = path.strip("/")
        try:
            # boto3 must not repeat a request by itself: an upload is on the condition that there is
            # no such file, and the second request would find the file of the first. What can be
            # repeated is repeated here, and an upload by `upload_file` in upload_set.py.
            client = boto3.client("s3", config=Config(retries={"total_max_attempts": 1}))
        except (BotoCoreError, ValueError) as error:
            reason = urls.hide_password(str(error))
            raise ConfigError(
                f"s3://{bucket}: {reason}: correct AWS_ENDPOINT_URL, AWS_PROFILE or ~/.aws",
                code="invalid-target",
            ) from None
        return cls(bucket, f"{prefix}/" if prefix else "", client)

    @property
    def name(self) -> str:
        """Return the address of the target."""
        return f"s3://{self.bucket}/{self.prefix}"

    def existing_digests(self, files: Sequence[UploadFile]) -> Mapping[str, str]:
        """Return the sha256 of the bucket's objects that have the names of these files.

        S3 knows the digest of an object that torchmill uploaded; any other object is read.
        """
        self._repeat(self.client.head_bucket, Bucket=self.bucket)
        digests = {}
        for file in files:
            digest = self._digest(self.prefix + file.name)
            if digest:
                digests[file.name] = digest
        return digests

    def _digest(self, key: str) -> str:
        """Return the sha256 of an object, "" if there is none."""
        answer = self._repeat(
            self.client.head_object,
            absent={},
            Bucket=self.bucket,
            Key=key,
            ChecksumMode="ENABLED",
        )
        if not answer:
            return ""
        checksum = answer.get("ChecksumSHA256", "")
        # The checksum of an upload in parts ends in their number, and is not the file's digest.
        if checksum and "-" not in checksum:
            return base64.b64decode(checksum).hex()
        content = retries.repeat(
            lambda: digest_parts(self._read_object(key)), retries.judge_error, key
        )
        return content.sha256

    def _read_whole(self, key: str) -> list[bytes]:
        """Return the content of a small object, in parts."""
        return retries.repeat(lambda: list(self._read_object(key)), retries.judge_error, key)

    def _read_object(self, key: str) -> Iterator[bytes]:
        """Return an iterator over the parts of an object's content."""
        body = self._call(self.client.get_object, Bucket=self.bucket, Key=key)["Body"]
        return iter(partial(self._call, body.read, amt=_READ_BYTES), b"")

    def stored_files(self) -> Iterator[StoredFile]:
        """Yield the objects of the prefix, without those of longer prefixes."""
        for key in self.list_keys():
            name = key.removeprefix(self.prefix)
            if "/" not in name:
                delete = self.client.delete_object
                yield StoredFile(
                    name,
                    digest=partial(self._digest, key),
                    read=partial(self._read_whole, key),
                    remove=partial(self._repeat, delete, Bucket=self.bucket, Key=key),
                )

    def list_keys(self) -> Iterator[str]:
        """Yield the keys of all objects that begin with the prefix."""
        paginator = self.client.get_paginator("list_objects_v2")
        pages = paginator.paginate(Bucket=self.bucket, Prefix=self.prefix)
        # The pages are requested while they are listed, and `_call` translates their errors.
        for page in self._repeat(lambda: list(pages)):
            for entry in page.get("Contents", ()):
                yield entry["Key"]

    def signed_url(self, key: str, suffix: str = "") -> str:
        """Return a URL at which the object of a key and suffix can be read for an hour."""
        parameters = {"Bucket": self.bucket, "Key": key + suffix}
        return str(self.client.generate_presigned_url("get_object", Params=parameters))

    def upload(self, file: UploadFile) -> None:
        """Upload a file, on the condition that there is none of its name; S3 checks its digest."""
        content_type = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        with file.path.open("rb") as body:
            self._call(
                self.client.put_object,
                Bucket=self.bucket,
                Key=self.prefix + file.name,
                Body=body,
                ContentLength=file.size,
                ContentType=content_type,
                ChecksumAlgorithm="SHA256",
                ChecksumSHA256=base64.b64encode(bytes.fromhex(file.sha256)).decode(),
                IfNoneMatch="*",
            )

    def _repeat(self, operation: Callable[..., Any], **parameters: Any) -> Any:
        """Return what `_call` returns, after several tries if the failure may pass.

        For operations that lead to the same state however often they are called.
        """
        return retries.repeat(
            partial(self._call, operation, **parameters), retries.judge_error, self.name
        )

    def _call(self, operation: Callable[..., Any], absent: Any = None, **parameters: Any) -> Any:
        """Return S3's answer to an operation with these parameters.

        For a missing object this is `absent`, if that is given. Raises DeliveryError for any other
        refusal, NetworkError if the store cannot be reached.
        """
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            HTTPClientError,
            IncompleteReadError,
        )

        try:
            return operation(**parameters)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if absent is not None and code in _ABSENT:
                return absent
            refusal = self._refusal(code, error.response, parameters.get("Key", ""))
            refusal.retry_after = _pause_before_next(code, error.response)
            raise refusal from None
        except BotoCoreError as error:
            reason = urls.hide_password(str(error).partition("\n")[0])
            network_error = NetworkError(
                f"{self.name} cannot be reached ({reason}): boto3 takes AWS_ACCESS_KEY_ID, "
                "AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL and ~/.aws; run the command "
                "again to go on",
                code="host-unreachable",
            )
            # An HTTPClientError is a connection that was not made, or broke. Others come from
            # settings, such as missing credentials.
            broke = isinstance(error, (HTTPClientError, IncompleteReadError))
            if broke and not LASTING_CONNECTION.search(str(error)):
                network_error.retry_after = 0.0
            raise network_error from None

    def _refusal(self, code: str, response: Mapping[str, Any], key: str) -> DeliveryError:
        """Return the error for a refused operation on a key, or on the bucket if the key is ""."""
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


def _pause_before_next(code: str, response: Mapping[str, Any]) -> float | None:
    """Return the seconds after which an operation that was refused may succeed; None if it will not."""
    answer = response.get("ResponseMetadata", {})
    if code not in _PASSING_CODES and not is_passing_status(answer.get("HTTPStatusCode", 0)):
        return None
    headers = {name.title(): value for name, value in answer.get("HTTPHeaders", {}).items()}
    return retries.requested_pause(headers)
