"""What of a user's settings reaches a container."""

from torchmill.build.containers.run import Mount
from torchmill.build.cross import container

HERE = {"/etc/ssl/certs/ca-certificates.crt", "/opt/wheels", "/srv/index/simple", "/home/me/proxy.pem"}


def test_the_way_to_the_network_is_passed_on_and_nothing_that_changes_the_wheel() -> None:
    environ = {
        "HTTPS_PROXY": "http://proxy:3128",
        "no_proxy": "localhost",
        "REQUESTS_CA_BUNDLE": "/home/me/proxy.pem",
        "TORCHMILL_CACHE": "redis://:secret@cache",
        "CXXFLAGS": "-march=native",
        "USE_CUDA": "1",
        "CC": "gcc-13",
        "PIP_TARGET": "/home/me/lib",
        "HOME": "/home/me",
        "SCCACHE_DIR": "/home/me/sccache",
        "SSL_CERT_FILE": "",
    }
    found = container.select_settings(environ, {}, HERE.__contains__)
    names = ["HTTPS_PROXY", "REQUESTS_CA_BUNDLE", "TORCHMILL_CACHE", "no_proxy"]
    assert sorted(found.variables) == names
    assert found.mounts == (Mount("/home/me/proxy.pem", "/home/me/proxy.pem"),)


def test_where_pip_finds_packages_is_passed_on_with_the_folders() -> None:
    listing = (
        ":env:.disable-pip-version-check='1'\n"
        ":env:.find-links='/opt/wheels'\n"
        "global.cert='/etc/ssl/certs/ca-certificates.crt'\n"
        "global.extra-index-url='\\nfile:///srv/index/simple\\nhttps://me:secret@index.example/simple'\n"
        "global.find-links='/gone'\n"
        "global.target='/home/me/lib'\n"
        "global.timeout='10'\n"
        "install.timeout='20'\n"
        "list.timeout='30'\n"
    )
    found = container.select_settings({}, container.parse_pip_settings(listing), HERE.__contains__)
    assert found.variables == {
        "PIP_CERT": "/etc/ssl/certs/ca-certificates.crt",
        "PIP_EXTRA_INDEX_URL": "file:///srv/index/simple https://me:secret@index.example/simple",
        "PIP_FIND_LINKS": "/opt/wheels",
        "PIP_TIMEOUT": "20",
    }
    # pages of an index lead to files that lie beside them
    places = ["/etc/ssl/certs/ca-certificates.crt", "/opt/wheels", "/srv/index"]
    assert found.mounts == tuple(Mount(path, path) for path in places)


def test_what_is_not_here_is_not_mounted() -> None:
    found = container.select_settings(
        {}, {"find-links": "/gone https://example.org/wheels ./near"}, HERE.__contains__
    )
    assert found.mounts == ()


def test_a_compiler_cache_of_the_users_own_is_written_to() -> None:
    environ = {"CCACHE_DIR": "/var/ccache", "TORCHMILL_CACHE": "file:///srv/cache%20all#read-only"}
    found = container.select_settings(environ, {}, HERE.__contains__)
    assert found.mounts == (
        Mount("/var/ccache", "/var/ccache", writable=True),
        Mount("/srv/cache all", "/srv/cache all", writable=True),
    )
