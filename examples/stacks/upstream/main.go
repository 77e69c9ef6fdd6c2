// Command upstream answers a request with what a framework of Go reads of it: upstream <framework> <port>.
package main

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"os"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v2"
	"github.com/gorilla/mux"
	"github.com/labstack/echo/v4"
)

// readings are named as the tests of keys have them.
type readings map[string]any

func isForm(contentType string) bool {
	return strings.HasPrefix(strings.ToLower(contentType), "application/x-www-form-urlencoded")
}

// id returns the field of JSON as encoding/json finds it.
func id(body []byte) any {
	var o struct {
		ID json.RawMessage `json:"id"`
	}
	if json.Unmarshal(body, &o) != nil || len(o.ID) == 0 || o.ID[0] == '{' || string(o.ID) == "null" {
		return nil
	}
	var text string
	if json.Unmarshal(o.ID, &text) == nil {
		return text
	}
	if o.ID[0] == '[' {
		return nil
	}
	return string(o.ID)
}

// ofRequest returns what net/http reads of a request.
func ofRequest(r *http.Request, path any) readings {
	got := readings{"path": path, "header": r.Header.Get("X-Customer")}
	if isForm(r.Header.Get("Content-Type")) {
		_ = r.ParseForm()
		got["form"], got["form_nested"], got["both"] = r.PostForm["id"], r.PostForm["order[id]"], r.Form["id"]
	} else {
		body, _ := io.ReadAll(r.Body)
		got["json"] = id(body)
	}
	got["query"], got["query_nested"] = r.URL.Query()["id"], r.URL.Query()["order[id]"]
	if cookie, err := r.Cookie("cart_id"); err == nil {
		got["cookie"] = cookie.Value
	}
	return got
}

func write(w http.ResponseWriter, got readings) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(got)
}

func handler(framework string) http.Handler {
	switch framework {
	case "chi":
		router := chi.NewRouter()
		router.HandleFunc("/orders/{id}/pay", func(w http.ResponseWriter, r *http.Request) { write(w, ofRequest(r, chi.URLParam(r, "id"))) })
		router.HandleFunc("/*", func(w http.ResponseWriter, r *http.Request) { write(w, ofRequest(r, nil)) })
		return router
	case "gorilla":
		router := mux.NewRouter()
		router.HandleFunc("/orders/{id}/pay", func(w http.ResponseWriter, r *http.Request) { write(w, ofRequest(r, mux.Vars(r)["id"])) })
		router.PathPrefix("/").HandlerFunc(func(w http.ResponseWriter, r *http.Request) { write(w, ofRequest(r, nil)) })
		return router
	case "gin":
		gin.SetMode(gin.ReleaseMode)
		router := gin.New()
		answer := func(c *gin.Context) {
			got := readings{"query": c.QueryArray("id"), "query_nested": c.QueryMap("order")["id"], "path": c.Param("id"), "header": c.GetHeader("X-Customer")}
			if isForm(c.ContentType()) {
				got["form"], got["form_nested"] = c.PostFormArray("id"), c.PostFormMap("order")["id"]
			} else {
				body, _ := c.GetRawData()
				got["json"] = id(body)
			}
			if cookie, err := c.Cookie("cart_id"); err == nil {
				got["cookie"] = cookie
			}
			c.JSON(http.StatusOK, got)
		}
		router.Any("/orders/:id/pay", answer)
		router.NoRoute(answer)
		return router
	case "echo":
		e := echo.New()
		answer := func(c echo.Context) error {
			got := readings{"query": c.QueryParams()["id"], "query_nested": c.QueryParam("order[id]"), "path": c.Param("id"), "header": c.Request().Header.Get("X-Customer")}
			if isForm(c.Request().Header.Get("Content-Type")) {
				got["both"], got["form_nested"] = c.FormValue("id"), c.FormValue("order[id]")
			} else {
				body, _ := io.ReadAll(c.Request().Body)
				got["json"] = id(body)
			}
			if cookie, err := c.Cookie("cart_id"); err == nil {
				got["cookie"] = cookie.Value
			}
			return c.JSON(http.StatusOK, got)
		}
		e.Any("/orders/:id/pay", answer)
		e.Any("/*", answer)
		return e
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/orders/{id}/pay", func(w http.ResponseWriter, r *http.Request) { write(w, ofRequest(r, r.PathValue("id"))) })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { write(w, ofRequest(r, nil)) })
	return mux
}

func serveFiber(addr string) error {
	app := fiber.New(fiber.Config{DisableStartupMessage: true})
	answer := func(c *fiber.Ctx) error {
		got := readings{"query": c.Query("id"), "query_nested": c.Query("order[id]"), "path": c.Params("id"), "header": c.Get("X-Customer"), "cookie": c.Cookies("cart_id")}
		if isForm(c.Get("Content-Type")) {
			var form struct {
				ID    string            `form:"id"`
				Order map[string]string `form:"order"`
			}
			_ = c.BodyParser(&form)
			got["form"], got["form_nested"] = []string{form.ID, c.FormValue("id")}, []string{form.Order["id"], c.FormValue("order[id]")}
		} else {
			got["json"] = id(c.Body())
		}
		return c.JSON(got)
	}
	app.All("/orders/:id/pay", answer)
	app.Use(answer)
	return app.Listen(addr)
}

func main() {
	framework, addr := os.Args[1], "127.0.0.1:"+os.Args[2]
	if framework == "fiber" {
		log.Fatal(serveFiber(addr))
	}
	log.Fatal(http.ListenAndServe(addr, handler(framework)))
}
