package middleware_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// markPaid records the payment, unless a request with a later lock was here before.
func markPaid(ctx context.Context, db *sql.DB, order string) error {
	turn, _ := middleware.TurnFromContext(ctx)
	fence, ok := turn.Fence()
	if !ok {
		return errors.New("the request runs without a lock")
	}
	result, err := db.ExecContext(ctx, "UPDATE orders SET state = 'paid', fence = $1 WHERE id = $2 AND fence <= $1", int64(fence), order)
	if err != nil {
		return err
	}
	if rows, err := result.RowsAffected(); err != nil || rows == 0 {
		return errors.Join(err, errors.New("a later request was here"))
	}
	return nil
}

// sqlite is a database in a file, through the program sqlite3: the module needs no driver for one test.
type sqlite struct{ file string }

func (s sqlite) Connect(context.Context) (driver.Conn, error) { return s, nil }
func (s sqlite) Driver() driver.Driver                        { return nil }
func (s sqlite) Prepare(string) (driver.Stmt, error)          { return nil, errors.New("not prepared") }
func (s sqlite) Begin() (driver.Tx, error)                    { return nil, errors.New("no transactions") }
func (s sqlite) Close() error                                 { return nil }

func (s sqlite) ExecContext(_ context.Context, statement string, args []driver.NamedValue) (driver.Result, error) {
	command := exec.Command("sqlite3", "-batch", "-bail", s.file, ".parameter init")
	for _, arg := range args {
		name := "$" + strconv.Itoa(arg.Ordinal)
		if arg.Name != "" {
			name = ":" + arg.Name
		}
		command.Args = append(command.Args, fmt.Sprintf(".parameter set %s %v", name, arg.Value))
	}
	command.Args = append(command.Args, statement, "SELECT changes()")
	out, err := command.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	rows, err := strconv.Atoi(strings.TrimSpace(string(out)))
	return driver.RowsAffected(rows), err
}

// TestFencingInSQL runs what docs/recipes.md says about fencing: a database keeps out the late write of a request whose lock was lost.
func TestFencingInSQL(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("sqlite3"); err != nil {
		t.Skip("sqlite3 is not on the PATH")
	}
	text, err := os.ReadFile("../docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Fencing in SQL\n")
	_, statements, _ := strings.Cut(section, "\n```sql\n")
	statements, _, _ = strings.Cut(statements, "\n```\n")
	alter, update, found := strings.Cut(statements, "\n")
	if !found {
		t.Fatal("docs/recipes.md has no statements")
	}

	db := sql.OpenDB(sqlite{filepath.Join(t.TempDir(), "orders")})
	t.Cleanup(func() { _ = db.Close() })
	exec := func(statement string, args ...any) int64 {
		t.Helper()
		result, err := db.ExecContext(t.Context(), statement, args...)
		if err != nil {
			t.Fatal(err)
		}
		rows, _ := result.RowsAffected()
		return rows
	}
	exec("CREATE TABLE orders (id TEXT, state TEXT)")
	exec(alter)
	exec("INSERT INTO orders VALUES ('42', 'new', 0)")

	var turns []context.Context // of requests that are paused, and go on when their locks have ended
	locker := newExampleLocker()
	t.Cleanup(func() { _ = locker.Close() })
	handler := middleware.New(locker, "order:{path.1:int}", middleware.Rule{})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		turns = append(turns, context.WithoutCancel(r.Context()))
	}))
	for range 2 {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/orders/42", nil))
	}
	if err := markPaid(turns[1], db, "'42'"); err != nil {
		t.Errorf("the later request: %v", err)
	}
	if err := markPaid(turns[0], db, "'42'"); err == nil || err.Error() != "a later request was here" {
		t.Errorf("the earlier request, after it: %v", err)
	}
	if err := markPaid(turns[1], db, "'42'"); err != nil {
		t.Errorf("the later request once more: %v", err)
	}
	if err := markPaid(t.Context(), db, "'42'"); err == nil {
		t.Error("a request without a lock has marked the order as paid")
	}

	turn, _ := middleware.TurnFromContext(turns[1])
	fence, _ := turn.Fence()
	for i, rows := range []int64{0, 1} {
		if got := exec(update, sql.Named("fence", int64(fence)-1+int64(i)), sql.Named("id", "'42'")); got != rows {
			t.Errorf("with a fencing token %d below the largest: %d rows, want %d", 1-i, got, rows)
		}
	}
}
