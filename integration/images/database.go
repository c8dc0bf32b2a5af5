package images

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// DatabaseUser is the user and the group that the database runs as.
const DatabaseUser = 999

// serveDatabase makes a database in a directory of the volume, and serves it. The name of the
// directory appears once all of it is on disk: a database that was only half made is made again.
const serveDatabase = `#!/bin/sh
set -e
if [ ! -d "$PGDATA" ]; then
  rm -rf "$PGDATA.new"
  initdb -D "$PGDATA.new" --auth=trust --encoding=UTF8 --no-locale --data-checksums
  echo "host all all all trust" >>"$PGDATA.new/pg_hba.conf"
  sync
  mv "$PGDATA.new" "$PGDATA"
fi
exec postgres -D "$PGDATA" -c listen_addresses="*" -c unix_socket_directories=/tmp -c max_wal_size=64MB
`

// FindDatabase returns the directory of PostgreSQL's programs, /usr/lib/postgresql/VERSION/bin,
// as Debian installs them.
func FindDatabase() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", errors.New("/usr/lib/postgresql has no server: run hack/database/deps.sh first")
	}
	return filepath.Dir(found[len(found)-1]), nil
}

// Database is PostgreSQL from the distribution's packages, over a busybox. Its data are in
// /data/database.
func (s Source) Database() (Named, error) {
	base, err := s.BusyboxImage()
	if err != nil {
		return Named{}, err
	}
	bin, err := FindDatabase()
	if err != nil {
		return Named{}, err
	}
	h := newHostFiles()
	for _, name := range []string{"postgres", "initdb"} {
		h.program(filepath.Join(bin, name), filepath.Join(bin, name))
	}
	top := filepath.Dir(bin)
	for _, dir := range []string{filepath.Join(top, "lib"), filepath.Join("/usr/share/postgresql", filepath.Base(top))} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case e.IsDir() && (e.Name() == "bitcode" || e.Name() == "pgxs"), strings.HasPrefix(e.Name(), "llvmjit"):
				if e.IsDir() { // what only its compiler and extensions' need
					return fs.SkipDir
				}
			case e.IsDir():
			case strings.HasSuffix(path, ".so"):
				h.program(path, path)
			default:
				h.add(path, path, 0o644)
			}
			return nil
		})
		if err != nil {
			return Named{}, fmt.Errorf("PostgreSQL's files: %w", err)
		}
	}
	h.add("usr/share/zoneinfo/UTC", "/usr/share/zoneinfo/UTC", 0o644)
	own := ociimage.Layer{Files: append(ociimage.Dirs("etc", "usr/local/bin"),
		ociimage.File{Path: "usr/local/bin/database", Mode: 0o755, Data: []byte(serveDatabase)},
		ociimage.File{Path: "etc/passwd", Mode: 0o644, Data: fmt.Appendf(nil, "%spostgres:x:%d:%[2]d::/:/bin/sh\n", passwd, DatabaseUser)},
		ociimage.File{Path: "etc/group", Mode: 0o644, Data: fmt.Appendf(nil, "%spostgres:x:%d:\n", group, DatabaseUser)},
	)}
	return Named{"database:1", base.Over(ocispec.ImageConfig{
		Entrypoint: []string{"/usr/local/bin/database"}, Env: []string{path + ":" + bin, "PGDATA=/data/database", "TZ=UTC"},
		User: fmt.Sprint(DatabaseUser), ExposedPorts: map[string]struct{}{"5432/tcp": {}},
	}, h.layer(), own)}, nil
}
