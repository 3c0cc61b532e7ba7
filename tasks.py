"""Tasks: they look after the machine and the source, before and after the sessions of noxfile.py.

Each task is a function, and its work a module of torchmill/commands/, which is imported only if
the task runs. The help of its options is in torchmill/commands/help.toml;
torchmill/commands/command_line.py has the additions to invoke.
"""

# Before all other modules of torchmill: an old Python fails at their syntax, and this one says so.
from torchmill.core import running_python  # noqa: F401, I001

import sys

# Invoke forbids Python to write bytecode, so that each command would compile all modules again.
sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)

from typing import Any

from invoke import Collection, Context

from torchmill.commands import command_line
from torchmill.commands.command_line import (
    BISECT_OPTIONS,
    BUILD_OPTIONS,
    build_options,
    layout,
    load_facts,
    marked_layout,
    show,
    task,
)
from torchmill.core.exits import prepare_program
from torchmill.core.plain_text import as_plain_text

prepare_program()


@task(iterable=["package"])
def fetch(
    _: Context,
    tag: str = "",
    package: list[str] | None = None,
    all_: bool = False,
    ref: str = "",
    mirror: str = "",
    from_: str = "",
    sha256: str = "",
    discard: bool = False,
) -> None:
    """Fetch a release, verify its commit, and select it.

    For example:
      invoke fetch --tag v1.13.1
      invoke fetch --tag v1.13.1 --from ~/src/pytorch
    """
    from torchmill.commands.fetch import fetch_release

    output = fetch_release(
        load_facts(),
        marked_layout(),
        tag=tag,
        package=package,
        all_=all_,
        ref=ref,
        mirror=mirror,
        from_=from_,
        sha256=sha256,
        discard=discard,
    )
    show(output)


# Not watched: a package manager that is killed at work leaves packages half-installed.
@task(watched=False)
def deps(context: Context, tag: str = "", print_: bool = False, manager: str = "") -> None:
    """Install the system packages that the selected release needs.

    For example:
      invoke deps --tag v1.13.1 --print
    """
    from torchmill.commands.deps import plan_installation

    installation = plan_installation(load_facts(), layout(), tag, manager, run=not print_)
    for remark in installation.remarks:
        sys.stderr.write(f"{as_plain_text(remark)}\n")
    show(installation.command, folded=False)
    if not print_:
        context.run(installation.command, pty=sys.stdout.isatty())


@task(iterable=["library"])
def toolkit(
    _: Context,
    list_: bool = False,
    cuda: str = "",
    library: list[str] | None = None,
    compiler: str = "",
    from_: str = "",
    channel: str = "",
    complete: str = "",
    arch_list: str = "",
    arch: str = "",
    json: bool = False,
) -> None:
    """List or install CUDA toolkits, libraries, compilers, without root.

    For example:
      invoke toolkit --cuda 11.8
      invoke toolkit --compiler gcc-11
    """
    from torchmill.commands.toolkit import show_or_install

    output = show_or_install(
        load_facts(),
        layout(),
        list_=list_,
        cuda=cuda,
        library=library,
        compiler=compiler,
        from_=from_,
        channel=channel,
        complete=complete,
        arch_list=arch_list,
        arch=arch,
    )
    show(output, json=json)


@task(iterable=["release"])
def facts(
    _: Context,
    check: bool = False,
    release: list[str] | None = None,
    new: bool = False,
    code: bool = False,
    wheels: bool = False,
    write: bool = False,
    table: bool = False,
) -> None:
    """Say what build_configs/ holds, compare it with PyPI, draft releases.

    For example:
      invoke facts --check --release 2.6.0
    """
    from tools.facts import look_after_facts

    output = look_after_facts(
        load_facts(),
        layout(),
        check=check,
        release=release,
        new=new,
        code=code,
        wheels=wheels,
        write=write,
        table=table,
    )
    show(output)


@task(argument="source", options=("torch",))
def add(
    _: Context,
    source: str,
    tag: str = "",
    name: str = "",
    force: bool = False,
    print_: bool = False,
    **options: Any,
) -> None:
    """Draft the facts about a package that has none, and try them.

    For example:
      invoke add gsplat
      invoke add ~/src/my-extension --torch ~/venv
    """
    from torchmill.commands.add.command import add_package
    from torchmill.plan.package_request import split_torch

    options["torch"], tag = split_torch(options["torch"], tag)
    output = add_package(
        load_facts(),
        marked_layout(),
        source=source,
        tag=tag,
        name=name,
        force=force,
        print_=print_,
        options=build_options("add", options),
    )
    show(output, folded=not print_)


@task()
def matrix(
    _: Context,
    tag: str = "",
    arch: str = "",
    package: str = "",
    json: bool = False,
    all_: bool = False,
) -> None:
    """Print the Pythons and toolkits of a release, and why no others.

    For example:
      invoke matrix --tag v2.4.1
    """
    from torchmill.commands.matrix import show_matrix

    output = show_matrix(
        load_facts(), layout(), tag=tag, arch=arch, package=package, json=json, all_=all_
    )
    show(output, json=json)


@task(argument="identifier")
def explain(
    _: Context,
    identifier: str,
    tag: str = "",
    host: str = "",
    index: str = "",
    json: bool = False,
) -> None:
    """Tell if a build is possible and who tried it; else name one that is.

    For example:
      invoke explain wheel-3.12-cpu
      invoke explain torch==2.15.0 --index index/ --host gpu-box.toml
    """
    from torchmill.commands.explain_variant import explain_variant
    from torchmill.commands.matrix import explain_cell_name

    if index:
        output = explain_variant(load_facts(), layout(), identifier, index, host=host, tag=tag)
    else:
        output = explain_cell_name(load_facts(), layout(), identifier, tag, host)
    show(output, json=json)


@task(argument="identifier", options=BUILD_OPTIONS)
def plan(
    _: Context,
    identifier: str,
    tag: str = "",
    host: str = "",
    collect_env: str = "",
    json: bool = False,
    sh: bool = False,
    all_: bool = False,
    **options: Any,
) -> None:
    """Print what a session would do and cost; with --all, every detail.

    For example:
      invoke plan wheel-3.10-cpu
      invoke plan wheel-3.8-cu111 --tag v1.8.1 --arch-list '6.1;7.0' --all
    """
    from torchmill.commands.plan import show_plan

    output = show_plan(
        load_facts(),
        layout(),
        identifier=identifier,
        tag=tag,
        host=host,
        collect_env=collect_env,
        json=json,
        sh=sh,
        all_=all_,
        options=build_options("plan", options),
    )
    show(output, json=json, folded=not sh)


@task(argument="list_", iterable=["gpu"])
def arch(
    _: Context,
    list_: str | None = None,
    gpu: list[str] | None = None,
    local: bool = False,
    cuda: str = "",
    tag: str = "",
    host: str = "",
    json: bool = False,
) -> None:
    """Say which GPUs, toolkits and releases match compute capabilities.

    For example:
      invoke arch --gpu 'RTX 3090'
      invoke arch '8.0;8.6+PTX' --cuda 11.8
    """
    from torchmill.commands.arch import show_arch

    output = show_arch(
        load_facts(), layout(), list_=list_, gpu=gpu, local=local, cuda=cuda, tag=tag, host=host
    )
    show(output, json=json)


@task(argument="build", options=BUILD_OPTIONS)
def doctor(
    _: Context,
    build: str | None = None,
    tag: str = "",
    host: str = "",
    collect_env: str = "",
    json: bool = False,
    save: str = "",
    fix: bool = False,
    yes: bool = False,
    all_: bool = False,
    **options: Any,
) -> None:
    """Examine this machine, for a build or in general; say what fixes it.

    For example:
      invoke doctor
      invoke doctor wheel-3.10-cu118 --fix
    """
    from torchmill.commands.doctor import show_examination

    output = show_examination(
        load_facts(),
        layout(),
        build=build,
        tag=tag,
        host=host,
        collect_env=collect_env,
        json=json,
        save=save,
        fix=fix,
        yes=yes,
        all_=all_,
        options=build_options("doctor", options),
    )
    show(output, json=json)


@task(argument="build", options=("jobs", "memory"))
def jobs(
    _: Context,
    build: str | None = None,
    tag: str = "",
    host: str = "",
    json: bool = False,
    **options: Any,
) -> None:
    """Show the limits of memory and processors, and how a build uses them.

    For example:
      invoke jobs wheel-3.10-cpu
    """
    from torchmill.commands.jobs import show_budget

    output = show_budget(
        load_facts(),
        layout(),
        build=build,
        tag=tag,
        host=host,
        options=build_options("jobs", options),
    )
    show(output, json=json)


@task(argument="cell", options=BUILD_OPTIONS)
def shards(
    _: Context,
    cell: str,
    count: str = "",
    tag: str = "",
    host: str = "",
    json: bool = False,
    **options: Any,
) -> None:
    """Say how long a build takes on 1 to 64 machines, and what that costs.

    For example:
      invoke shards wheel-3.10-cu126
    """
    from torchmill.commands.shards import show_shards

    output = show_shards(
        load_facts(),
        layout(),
        cell=cell,
        count=count,
        tag=tag,
        host=host,
        options=build_options("shards", options),
    )
    show(output, json=json)


@task(argument="cell", iterable=["cell", "python", "cuda", "gpu"], options=BUILD_OPTIONS)
def build(
    _: Context,
    cell: list[str] | None = None,
    tag: str = "",
    python: list[str] | None = None,
    cuda: list[str] | None = None,
    gpu: list[str] | None = None,
    yes: bool = False,
    elsewhere: bool = False,
    dry_run: bool = False,
    from_: str = "",
    mirror: str = "",
    ref: str = "",
    host: str = "",
    new_torch: bool = False,
    json: bool = False,
    **options: Any,
) -> None:
    """Build wheels from start to finish, with all that they need.

    For example:
      invoke build --tag v2.4.1 --python 3.12 --gpu local
      invoke build flash-attn torch-scatter --gpu "RTX 4090"
    """
    from torchmill.commands.build import build_wheels
    from torchmill.commands.build_request import BuildRequest, SourceWishes
    from torchmill.plan.package_request import split_torch

    is_family = new_torch or json
    if not is_family:
        options["torch"], tag = split_torch(options["torch"], tag)
    request = BuildRequest(
        names=tuple(cell or ()),
        tag=tag,
        pythons=tuple(python or ()),
        variants=tuple(cuda or ()),
        gpus=tuple(gpu or ()),
        source=SourceWishes(from_, mirror, ref),
        options=build_options("build", options),
        yes=yes,
        elsewhere=elsewhere,
        dry_run=dry_run,
    )
    if is_family:
        from torchmill.commands.new_torch import build_family

        unfit = {"--host": host, "--json": "" if new_torch else "json"}
        output = build_family(load_facts(), marked_layout(), request, unfit=unfit, json=json)
    else:
        output = build_wheels(load_facts(), layout(), request, host=host)
    show(output, json=json)


@task(argument="cell", options=BUILD_OPTIONS)
def cluster(
    _: Context,
    cell: str,
    shards: str = "8",
    tag: str = "",
    engine: str = "slurm",
    image: str = "",
    volume: str = "",
    queue: str = "",
    sbatch: str = "",
    prologue: str = "",
    submit: bool = False,
    **options: Any,
) -> None:
    """Write jobs that share one build among machines, as for Slurm.

    For example:
      invoke cluster wheel-3.10-cu126 --shards 8 --sbatch '--cpus-per-task=16 --mem=64G' --submit
    """
    from torchmill.commands.cluster import write_jobs

    output = write_jobs(
        load_facts(),
        marked_layout(),
        cell=cell,
        shards=shards,
        tag=tag,
        engine=engine,
        image=image,
        volume=volume,
        queue=queue,
        sbatch=sbatch,
        prologue=prologue,
        submit=submit,
        options=build_options("cluster", options),
    )
    show(output)


@task(argument="cell", iterable=["with_"], options=BISECT_OPTIONS, takes_rest=True)
def bisect(
    _: Context,
    cell: str | None = None,
    good: str = "",
    bad: str = "",
    tag: str = "",
    mirror: str = "",
    with_: list[str] | None = None,
    trust_ends: bool = False,
    reset: bool = False,
    **options: Any,
) -> None:
    """Find the commit that changed behaviour, by builds and a command.

    For example:
      invoke bisect wheel-3.10-cpu --good v1.12.0 --bad v1.13.0 -- python check.py
    """
    from torchmill.commands.bisect import find_bad_commit

    output = find_bad_commit(
        load_facts(),
        marked_layout(),
        cell=cell,
        good=good,
        bad=bad,
        tag=tag,
        mirror=mirror,
        with_=with_,
        trust_ends=trust_ends,
        reset=reset,
        command=command_line.COMMAND_LINE.rest,
        options=build_options("bisect", options),
    )
    show(output)


@task(argument="wheel", iterable=["patch"])
def rebuild(
    _: Context,
    wheel: str,
    into: str = "",
    torch: str = "",
    patch: list[str] | None = None,
    mirror: str = "",
    from_: str = "",
    strict: bool = False,
    trust: bool = False,
) -> None:
    """Build a wheel again from its records, and say if it is the same.

    For example:
      invoke rebuild dist/torch-1.13.1+cpu-cp310-cp310-manylinux_2_34_x86_64.whl
    """
    from torchmill.commands.rebuild import rebuild_wheel

    output = rebuild_wheel(
        load_facts(),
        marked_layout(),
        wheel=wheel,
        into=into,
        torch=torch,
        patch=patch or (),
        mirror=mirror,
        from_=from_,
        strict=strict,
        trust=trust,
    )
    show(output)


@task(argument="log")
def diagnose(
    _: Context,
    log: str | None = None,
    tag: str = "",
    host: str = "",
    collect_env: str = "",
    json: bool = False,
) -> None:
    """Say from its log why a build failed, and what fixes it.

    For example:
      invoke diagnose build.log --collect-env environment.txt
      nox -s wheel-3.10-cpu 2>&1 | invoke diagnose -
    """
    from torchmill.commands.diagnose import diagnose_log

    output = diagnose_log(load_facts(), layout(), log, tag=tag, host=host, collect_env=collect_env)
    show(output, json=json)


@task(argument="build")
def report(_: Context, build: str | None = None, out: str = "") -> None:
    """Show a build's memory, time and failure as a page or a picture.

    For example:
      invoke report torch-2.9.1+cpu-cp312-cp312-manylinux_2_28_x86_64.whl --out reports/
    """
    from torchmill.commands.report.command import draw_build

    show(draw_build(load_facts(), layout(), build, out))


@task(argument="wheel", iterable=["wheel", "key"])
def verify(
    _: Context,
    wheel: list[str] | None = None,
    original: str = "",
    write: bool = False,
    key: list[str] | None = None,
    identity: str = "",
    issuer: str = "",
    trusted_root: str = "",
    json: bool = False,
) -> None:
    """Check that wheels agree with their manifests, statements and SBOMs.

    For example:
      invoke verify
      invoke verify dist/ --key release.pub.pem
    """
    from torchmill.commands.verify import verify_wheels

    output = verify_wheels(
        layout(),
        wheel=wheel,
        original=original,
        write=write,
        key=key,
        identity=identity,
        issuer=issuer,
        trusted_root=trusted_root,
    )
    show(output, json=json)


@task(argument="wheel", iterable=["wheel", "gpu"])
def slim(
    _: Context,
    wheel: list[str] | None = None,
    arch_list: str = "",
    gpu: list[str] | None = None,
    local: bool = False,
    environment: str = "",
    out: str = "",
    variants: bool = False,
    dry_run: bool = False,
) -> None:
    """Remove from wheels the GPU code that your GPUs do not run.

    For example:
      invoke slim dist/ --gpu 'RTX 3090'
      invoke slim --variants 7.5 8.6 9.0 12.0
    """
    from torchmill.commands.slim import slim_wheels

    output = slim_wheels(
        load_facts(),
        layout(),
        wheel=wheel,
        arch_list=arch_list,
        gpu=gpu,
        local=local,
        environment=environment,
        out=out,
        variants=variants,
        dry_run=dry_run,
    )
    show(output)


@task(iterable=["dist", "yank", "unyank", "replace", "gpu", "official"])
def index(
    _: Context,
    dist: list[str] | None = None,
    out: str = "",
    files: str = "link",
    base_url: str = "",
    yank: list[str] | None = None,
    unyank: list[str] | None = None,
    reason: str = "",
    replace: list[str] | None = None,
    manifest: bool = False,
    keep: str = "",
    conda: bool = False,
    variants: bool = False,
    gpu: list[str] | None = None,
    arch_list: str = "",
    official: list[str] | None = None,
    json: bool = False,
) -> None:
    """Write a static package index of the wheels in dist/.

    For example:
      invoke index --out public --base-url https://wheels.example.org
      invoke index --variants --gpu 'RTX 3090' --gpu H100
    """
    from torchmill.commands.index import write_index

    output = write_index(
        load_facts(),
        marked_layout(),
        dist=dist,
        out=out,
        files=files,
        base_url=base_url,
        yank=yank,
        unyank=unyank,
        reason=reason,
        replace=replace,
        manifest=manifest,
        keep=keep,
        conda=conda,
        variants=variants,
        gpu=gpu,
        arch_list=arch_list,
        official=official,
    )
    show(output, json=json)


@task(iterable=["package", "variant", "platform"])
def snippet(
    _: Context,
    tool: str = "",
    package: list[str] | None = None,
    tag: str = "",
    variant: list[str] | None = None,
    platform: list[str] | None = None,
    index: str = "",
    direct: bool = False,
    into: str = "",
    extra: str = "",
) -> None:
    """Print what a project needs to use the wheels, for uv, pip, others.

    For example:
      invoke snippet --tool uv --package torchvision
    """
    from torchmill.commands.snippet import write_snippet

    output = write_snippet(
        load_facts(),
        layout(),
        tool=tool,
        package=package,
        tag=tag,
        variant=variant,
        platform=platform,
        index=index,
        direct=direct,
        into=into,
        extra=extra,
    )
    show(output, folded=False)


@task(iterable=["python", "gpu", "client"])
def image(
    _: Context,
    kind: str = "",
    tag: str = "",
    python: list[str] | None = None,
    toolkit: str = "",
    arch: str = "",
    purpose: str = "",
    base: str = "",
    index: str = "",
    gpu: list[str] | None = None,
    client: list[str] | None = None,
    into: str = "",
    build: bool = False,
    engine: str = "",
) -> None:
    """Write a Dockerfile: a builder, a runtime, a dev container; build it.

    For example:
      invoke image --kind builder --tag v1.13.1 --python 3.10 --toolkit 11.8 --build
    """
    from torchmill.commands.image import write_image

    output = write_image(
        load_facts(),
        marked_layout(),
        kind=kind,
        tag=tag,
        python=python,
        toolkit=toolkit,
        arch=arch,
        purpose=purpose,
        base=base,
        index=index,
        gpu=gpu,
        client=client,
        into=into,
        build=build,
        engine=engine,
    )
    show(output)


@task(iterable=["name"])
def publish(
    _: Context,
    to: str = "",
    name: list[str] | None = None,
    variant: str = "",
    tag: str = "",
    dist: str = "",
    simple: str = "",
    sign_key: str = "",
    manifest: bool = False,
    keep: str = "",
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Publish verified wheels to the place that --to names.

    For example:
      invoke publish --to https://pypi.example.org/team/prod --name torch --dry-run
    """
    from torchmill.commands.publish import publish_wheels

    output = publish_wheels(
        layout(),
        to=to,
        name=name,
        variant=variant,
        tag=tag,
        dist=dist,
        simple=simple,
        sign_key=sign_key,
        manifest=manifest,
        keep=keep,
        dry_run=dry_run,
    )
    show(output, json=json)


@task()
def status(_: Context, watch: bool = False, json: bool = False) -> None:
    """Show what is stored where, how big it is, and what uses it.

    For example:
      invoke status
      invoke status --watch
    """
    if watch:
        from torchmill.commands.watch import watch_builds

        watch_builds(layout(), json=json)
        return
    from torchmill.commands.clean.command import show_status

    show(show_status(load_facts(), layout()), json=json)


@task(iterable=["kind"])
def clean(
    _: Context,
    kind: list[str] | None = None,
    age: str = "",
    release: str = "",
    free: str = "",
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Remove what can be made again; never what is in use.

    For example:
      invoke clean --kind trees --age 30d --dry-run
      invoke clean --free '20 GiB'
    """
    from torchmill.commands.clean.command import clean as remove_stored

    output = remove_stored(
        load_facts(), layout(), kind=kind, age=age, release=release, free=free, dry_run=dry_run
    )
    show(output, json=json)


namespace = Collection(
    fetch,
    deps,
    toolkit,
    facts,
    add,
    matrix,
    explain,
    plan,
    arch,
    doctor,
    jobs,
    shards,
    build,
    cluster,
    bisect,
    rebuild,
    diagnose,
    report,
    verify,
    slim,
    index,
    snippet,
    image,
    publish,
    status,
    clean,
)
command_line.answer_first(namespace)
