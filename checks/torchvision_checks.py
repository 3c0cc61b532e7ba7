"""Try a torchvision wheel: its operators in C++, its transforms, a model, and the image decoders."""

# ruff: noqa: ARG001 (every check takes the expectations)

import io

import harness
from harness import expect, expect_close, expect_equal, run

torch, torchvision = harness.LazyModule("torch"), harness.LazyModule("torchvision")


def check_cuda_version(expected):
    """Ask the operators which CUDA they were compiled with: 11080 is 11.8, -1 is none."""
    try:
        version = torch.ops.torchvision._cuda_version()  # noqa: SLF001 (there is no public word for it)
    except (AttributeError, RuntimeError):
        return "this release does not report it"
    planned = expected.get("cuda")
    if planned is None:
        return expect(
            version == -1, "the operators were compiled with CUDA {}, not without".format(version)
        )
    expect(version != -1, "the operators were compiled without CUDA")
    name = "{}.{}".format(version // 1000, version % 1000 // 10)
    return expect_equal(name, planned, "CUDA of the operators")


def check_nms(expected):
    """Suppress by hand: B overlaps A by 81/119 = 0.68, C is far away, D is inside C by a quarter."""
    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 11, 11], [50, 50, 60, 60], [50, 50, 55, 55]])
    scores = torch.tensor([0.8, 0.9, 0.5, 0.6])
    for overlap, kept in ((0.5, [1, 3, 2]), (0.7, [1, 0, 3, 2]), (0.2, [1, 3])):
        result = torchvision.ops.nms(boxes, scores, overlap).tolist()
        expect_equal(result, kept, "what nms keeps above an overlap of {}".format(overlap))


def check_roi_align(expected):
    """Average a plane 2x + 3y over boxes: the mean over a cell is the value in its middle."""
    line = torch.arange(16.0)
    plane = (2 * line.reshape(1, 16) + 3 * line.reshape(16, 1)).reshape(1, 1, 16, 16)
    box = torch.tensor([[0.0, 2.0, 4.0, 10.0, 12.0]])
    settings = {"output_size": (2, 2), "spatial_scale": 1.0, "sampling_ratio": 2}
    means = torchvision.ops.roi_align(plane, box, **settings).reshape(-1).tolist()
    # cells of 4 x 4 from (2, 4): middles at x = 4, 8 and y = 6, 10
    expect_close(
        means,
        [2 * x + 3 * y for y in (6.0, 10.0) for x in (4.0, 8.0)],
        1e-4,
        "roi_align of a plane",
    )


def check_transform(expected):
    from PIL import Image

    transforms = torchvision.transforms
    resize, normalize = (
        transforms.Resize((24, 32)),
        transforms.Normalize([0.5, 0.4, 0.5], [0.5, 0.2, 0.25]),
    )
    image = Image.new("RGB", (64, 48), (255, 102, 0))
    result = transforms.Compose([resize, transforms.ToTensor(), normalize])(image)
    expect_equal(tuple(result.shape), (3, 24, 32), "the shape of a transformed image")
    for channel, wanted in enumerate((1.0, 0.0, -2.0)):
        expect_close(
            result[channel].min().item(), wanted, 1e-5, "the least of channel {}".format(channel)
        )
        expect_close(
            result[channel].max().item(), wanted, 1e-5, "the most of channel {}".format(channel)
        )


def check_resnet18(expected):
    torch.manual_seed(0)
    model = torchvision.models.resnet18().eval()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    expect_equal(parameters, 11689512, "the number of parameters of resnet18")
    with torch.no_grad():
        result = model(torch.randn(2, 3, 96, 96))
    expect_equal(tuple(result.shape), (2, 1000), "the shape of what resnet18 gives")
    expect(not torch.isnan(result).any().item(), "resnet18 gives nan")
    expect(result.abs().max().item() < 1e4, "resnet18 gives values without bounds")
    expect(result.std().item() > 0, "resnet18 gives the same everywhere")


def check_decoders(expected):
    """Decode what Pillow encodes: PNG exactly, JPEG and WebP of one colour nearly."""
    if not built_with_decoders():
        return "built without decoders for images"
    for encoding, tolerance in (("PNG", 0), ("JPEG", 4)):
        try_decoder(torchvision.io.decode_image, encoding, tolerance)
    if not hasattr(torchvision.io, "decode_webp"):  # before 0.20
        return "PNG and JPEG"
    try:
        try_decoder(torchvision.io.decode_webp, "WEBP", 8)
    except RuntimeError as error:
        if "not compiled with" not in str(error):
            raise
        return "PNG and JPEG; built without WebP"
    return "PNG, JPEG and WebP"


def try_decoder(decode, encoding, tolerance):
    colour = (200, 100, 50)
    decoded = decode(encoded(encoding, colour))
    expect_equal(tuple(decoded.shape), (3, 16, 24), "the shape of a decoded {}".format(encoding))
    middle = decoded[:, 8, 12].to(torch.int64).tolist()
    expect_close(middle, list(colour), tolerance, "the colour of a decoded {}".format(encoding))


def built_with_decoders():
    if not hasattr(torchvision.io, "decode_image"):
        return False
    try:
        return bool(torch.ops.image.decode_png and torch.ops.image.decode_jpeg)
    except (AttributeError, RuntimeError):
        return False


def encoded(encoding, colour):
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (24, 16), colour).save(buffer, encoding)
    return torch.tensor(list(buffer.getvalue()), dtype=torch.uint8)


CHECKS = [
    ("import", harness.check_import),
    ("version", harness.check_version),
    ("git_version", harness.check_git_version),
    ("cuda version", check_cuda_version),
    ("nms", check_nms),
    ("roi_align", check_roi_align),
    ("transform", check_transform),
    ("resnet18", check_resnet18),
    ("decoders", check_decoders),
]

if __name__ == "__main__":
    run(CHECKS)
