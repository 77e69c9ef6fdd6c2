// Servlets: Locked.before(context, "pay"). By a servlet's name, not a path: no spelling gets around that.
class Locked extends HttpFilter {
    static void before(ServletContext context, String servlet) {
        context.addFilter("locked", new Locked()).addMappingForServletNames(EnumSet.allOf(DispatcherType.class), true, servlet);
    }

    @Override
    protected void doFilter(HttpServletRequest request, HttpServletResponse response, FilterChain chain) throws IOException, ServletException {
        String key = request.getHeader("Redlock-Key");
        List<?> values = key == null ? List.of() : (List<?>) new ObjectMapper().readValue(key, Map.class).getOrDefault("path.1", List.of());
        if (request.getHeader("Fencing-Token") != null && values.contains(request.getPathInfo().split("/")[1])) { // what the servlet acts on
            chain.doFilter(request, response);
        } else {
            response.sendError(HttpServletResponse.SC_BAD_REQUEST);
        }
    }
}
